"""The simulator with loaders: the real protocol on a model of Delta's log. See `buffer.testing.simulator`.

python -m buffer_delta.testing --seeds 2000     # all must be green
python -m buffer_delta.testing --seed 7         # one of them, with its trace
"""

from buffer_delta.testing.delta_log import DeltaLog, JobFailed, SimulatedTarget
from buffer_delta.testing.worlds import simulate, simulate_loader, world_of

__all__ = ["DeltaLog", "JobFailed", "SimulatedTarget", "simulate", "simulate_loader", "world_of"]
