"""Runs the worlds with client ids: `python -m tests.simulation.clients --seeds 2000`, or `--seed 7` with its trace."""

import sys

from buffer.testing.simulator.clients import simulate_clients
from buffer.testing.simulator.runner import main

if __name__ == "__main__":
    sys.exit(main(simulate_clients, sys.argv[1:], sys.stdout, program="python -m tests.simulation.clients"))
