"""What `make simulate` runs: the simulator that ships in `buffer_delta.testing`."""

import sys

from buffer.testing.simulator.runner import main
from buffer_delta.testing import simulate

if __name__ == "__main__":
    sys.exit(main(simulate, sys.argv[1:], sys.stdout, program="python -m buffer_delta.testing"))
