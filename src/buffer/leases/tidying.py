"""When the finished prefix leaves the manifest. Pure.

A dequeue writes the whole manifest anew, and every worker reads it again afterwards: both cost what the queue's length
is. So that a cycle costs the same on a queue of any length,

- a worker thinks of it only when a write of its own carried the frontier over a multiple of `LOOK_EVERY`: it is one
  of them each time, and not all at once. Should that one die, the next multiple is another chance;
- it happens only where a `SHARE` of what would stay can go, so the manifest is written for each batch a fixed number
  of times over, however long it is;
- a worker that finds nothing to do may do it any time, but keeps to that share while others hold leases: they are at
  work, and their next cycle would pay. Where nobody is at work, whatever is finished goes.
"""

from __future__ import annotations

LOOK_EVERY = 100  # finished batches: a write of the manifest each time would double the cost of a cycle
SHARE = 10  # so a manifest is never more than a tenth longer than it has to be, or 100 batches


class Tidying:
    """One worker's view of when it is time."""

    def __init__(self) -> None:
        self._is_our_turn = False

    def moved(self, before: int, after: int) -> None:
        """A write of ours took `finished_through` from here to there."""
        if (before + 1) // LOOK_EVERY < (after + 1) // LOOK_EVERY:
            self._is_our_turn = True

    def is_due(self, finished: int, left: int, *, idle: bool, in_flight: int) -> bool:
        """Whether to take out the `finished` batches before the frontier, where `left` would stay."""
        asked, self._is_our_turn = self._is_our_turn, False
        if idle and not in_flight:
            return finished > 0
        return (idle or asked) and finished >= max(1, left // SHARE)
