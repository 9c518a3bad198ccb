"""Runs the older format's worlds: `python -m tests.simulation.legacy --seeds 2000`, or `--seed 7` with its trace."""

import sys

from buffer.testing.simulator.legacy import simulate_legacy
from buffer.testing.simulator.runner import main

if __name__ == "__main__":
    sys.exit(main(simulate_legacy, sys.argv[1:], sys.stdout, program="python -m tests.simulation.legacy"))
