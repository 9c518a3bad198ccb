"""The suite beside busy processes, several times in a row: `python -m tests.busy --runs 3 --busy 8`.

A test that races passes on a quiet machine. Prints a line for each run, and ends with 1 at the first that is not green;
what pytest said of it stays above. What comes after `--` goes to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
"""Busy for as long as we live: nobody has to end it where we are killed."""


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.busy", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", type=int, default=8, metavar="N", help="processes that do nothing but compute")
    parser.add_argument("pytest", nargs="*", help="after `--`: options and tests for pytest")
    options = parser.parse_args()
    with ExitStack() as stack:
        for _ in range(options.busy):
            stack.enter_context(busy_process())
        for number in range(1, options.runs + 1):
            began_s = time.monotonic()
            code = subprocess.run([sys.executable, "-m", "pytest", *options.pytest], check=False).returncode
            minutes, load = (time.monotonic() - began_s) / 60, os.getloadavg()[1]
            sys.stdout.write(f"run {number} of {options.runs}: exit {code} after {minutes:.1f} min, load {load:.1f}\n")
            sys.stdout.flush()
            if code:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
