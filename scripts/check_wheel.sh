#!/bin/sh
# Build wheel and sdist, install the wheel into a new venv without extras, and use it the way a producer would.
# Fails if that brings Spark or pandas along, or if a command does not work. Needs pip's index, or its cache.
#
#   scripts/check_wheel.sh [python]        the interpreter to build and install with; python3 unless given
set -eu

python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

say() { printf '  %s\n' "$*"; }

say "building wheel and sdist"
builder=$python
if ! "$builder" -c 'import build' 2>/dev/null; then
  "$python" -m venv "$work/builder"
  builder=$work/builder/bin/python
  "$builder" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" build
fi
"$builder" -m build --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

say "installing the wheel without extras"
"$python" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$work"/dist/*.whl

cd "$work" # so that nothing is imported from the source tree
for package in pyspark delta pandas numpy; do
  if "$bin/python" -c "import $package" 2>/dev/null; then
    echo "the wheel without extras brought $package along" >&2
    exit 1
  fi
done
"$bin/python" -c 'import buffer, buffer_delta, pathlib
assert str(pathlib.Path(buffer.__file__)).startswith(str(pathlib.Path("venv").resolve())), buffer.__file__
for package in (buffer, buffer_delta):
    assert (pathlib.Path(package.__file__).parent / "py.typed").exists(), package'

say "running its commands"
"$bin/buffer" --help >/dev/null
"$bin/buffer-delta" --help >/dev/null
printf 'one\ntwo\nthree\n' | "$bin/buffer" produce --store ./queue --compression zstd --json >summary.json
"$bin/python" -c 'import json; assert json.load(open("summary.json"))["entries"] == 3'
test "$("$bin/buffer" tail --store ./queue -n 1)" = three
"$bin/buffer" verify --store ./queue >/dev/null
"$bin/buffer" status --store ./queue >/dev/null

# What needs Spark says so, and how to get it.
code=0
"$bin/buffer-delta" load --store ./queue --table ./table 2>error.txt || code=$?
test "$code" = 1
grep -q "pip install 'buffer-delta\[spark\]'" error.txt

say "the wheel is fine: $(ls dist)"
