"""Entries that are about to leave the queue, and who keeps what of them. `queue.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from buffer.manifest import Manifest
from buffer.model import BatchDescriptor


@dataclass(frozen=True, slots=True)
class Leaving:
    """Entries that are about to leave the queue. Iterate it for them, oldest first."""

    manifest: Manifest
    """The queue as it is before."""
    through: int
    """The last sequence that leaves."""

    def __len__(self) -> int:
        return self.through + 1 - self.manifest.first_sequence

    def __iter__(self) -> Iterator[BatchDescriptor]:
        # A manifest of its own: it remembers the place read last, which is the cursor's for the one we keep.
        return islice(Manifest.from_bytes(self.manifest.to_bytes()), len(self))


Keeper = Callable[[Leaving], None]
"""Keeps durably what must outlive the entries given. See the rules in `queue.py`."""
