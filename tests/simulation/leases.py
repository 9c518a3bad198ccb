"""Runs the worlds with leases: `python -m tests.simulation.leases --seeds 2000`, or `--seed 7` with its trace."""

import sys

from buffer.testing.simulator.leases import simulate_leases
from buffer.testing.simulator.runner import main

if __name__ == "__main__":
    sys.exit(main(simulate_leases, sys.argv[1:], sys.stdout, program="python -m tests.simulation.leases"))
