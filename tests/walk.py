"""The newcomer's walk: README top to bottom in a fresh clone, each command as it is printed: `python -m tests.walk`.

Where the README prints what a command says, the output must be that: line by line, but for numbers, and but for what is
left out, which `…` marks. `make test` takes its time and is left out unless `--all` is given. Ends with 1 at the
first command that fails or says something else.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.documents import ROOT, blocks

LEFT_OUT = "…"
SLOW = ("make test",)


def plain(line: str) -> str:
    """Without what differs from run to run: numbers, units, what comes after a semicolon, the width of a table."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    line = re.sub(r"\d[\d,.]*", "#", line.partition(";")[0])
    line = re.sub(r"\b[kMG]?B(/s)?\b", r"B\1", line)
    return re.sub(r"\bfiles?\b", "files", re.sub(r"\s+", " ", line)).strip()


def differs(shown: Sequence[str], said: Sequence[str]) -> str | None:
    """The first line that is not as it is printed; None: all is."""
    lines, at, gap = [plain(line) for line in said if line.strip()], 0, False
    for line in shown:
        if line.strip() == LEFT_OUT:
            gap = True
            continue
        found = [number for number in range(at, len(lines)) if lines[number] == plain(line)]
        if not found or (found[0] != at and not gap):
            return f"printed: {line.strip()!r}, said: {lines[at] if at < len(lines) else 'nothing more'!r}"
        at, gap = found[0] + 1, False
    return None if at == len(lines) or gap or not shown else f"said, and not printed: {lines[at]!r}"


def run(command: str, clone: Path) -> tuple[int, list[str]]:
    """In a shell in the clone, as somebody would who follows the README: with its .venv, once that is there."""
    activate = "test -f .venv/bin/activate && source .venv/bin/activate; "
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with subprocess.Popen(
        ["bash", "-c", activate + command],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            tell(f"    {line.rstrip()}")
            said.append(line.rstrip("\n"))
    return process.returncode, said


def after(said: Sequence[str], first: str) -> Sequence[str]:
    """From the line on that the README begins with: a first `make` tells of its installation before that."""
    places = [number for number, line in enumerate(said) if plain(line) == plain(first)]
    return said[places[0] :] if places else said


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Walk through the README in a fresh clone.")
    parser.add_argument("--all", action="store_true", help="with the commands that take long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        clone = Path(folder) / "buffer-delta"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for block in blocks("console"):
            if block.document != "README.md":
                continue
            for command in block.commands():
                if command in SLOW and not options.all:
                    tell(f"$ {command}    (left out)")
                    continue
                tell(f"$ {command}")
                code, said = run(command, clone)
                shown = block.output() if len(block.commands()) == 1 else []
                problem = differs(shown, after(said, shown[0])) if shown else None
                if code or problem:
                    tell(f"FAILED, exit code {code}" + (f": {problem}" if problem else ""))
                    return 1
    tell("the README is as it says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
