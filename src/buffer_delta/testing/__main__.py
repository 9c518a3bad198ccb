"""`python -m buffer_delta.testing`: run simulated worlds with loaders, by the thousand or one with its trace."""

import sys

from buffer.testing.simulator.runner import main
from buffer_delta.testing.worlds import simulate

if __name__ == "__main__":
    sys.exit(main(simulate, sys.argv[1:], sys.stdout, program="python -m buffer_delta.testing"))
