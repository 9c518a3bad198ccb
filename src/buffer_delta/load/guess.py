"""When to try a range of evolving data with the columns that its table has, instead of looking for new ones first.

Looking means that every record is parsed twice. A try that is right spares that; one that is wrong was in vain. Where
columns come all the time, or something is rescued in every range, tries become rare.
"""

from __future__ import annotations

SKIPPED_MAX = 64  # ranges between two tries: by then a third of a range is lost to tries in 64


class Tries:
    """Which ranges to try."""

    def __init__(self) -> None:
        self._skip = 0
        self._left = 0

    def is_due(self) -> bool:
        """Whether to try this range. Asked once for each."""
        self._left -= 1
        return self._left < 0

    def tell(self, *, right: bool) -> None:
        """What came of a try."""
        self._skip = 0 if right else min(SKIPPED_MAX, max(1, 2 * self._skip))
        self._left = self._skip
