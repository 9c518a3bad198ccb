"""Stored sizes of the batches in the queue, for choosing ranges and spreading them over tasks. Used by `work.py`.

- Nothing is listed while every size that is asked for is known.
- Batch names are ULIDs, so new ones come last: a listing begins at the oldest name that is not known, never at the
  beginning of the folder. What else it finds is kept, for it is probably asked for next.
- A batch that is not in our folder under such a name, or that the listing did not find, is asked for alone. One that
  is not there counts as empty: whoever fetches it finds out.
- What was loaded is forgotten; and of the rest, orphans among them, no more is kept than `SIZES_KEPT_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from buffer.errors import InvalidInput, ObjectNotFound
from buffer.model import BatchDescriptor
from buffer.names import batch_ulid
from buffer.store.base import CanHead, CanList

SIZES_KEPT_MAX = 100_000  # about 20 MB; a longer queue is listed in parts

_SUFFIX = ".batch"


class CanSize(CanHead, CanList, Protocol):
    """What a store must be able to do for this."""


class BatchSizes:
    """Sizes by location. Not thread-safe."""

    def __init__(self, store: CanSize, prefix: str, *, kept_max: int = SIZES_KEPT_MAX) -> None:
        self._store = store
        self._prefix = prefix
        self._kept_max = kept_max
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def look_up(self, descriptors: Sequence[BatchDescriptor]) -> dict[str, int]:
        """Stored bytes of each batch, by location. On a storage error what was found so far stays known."""
        wanted = [d.location for d in descriptors]
        missing = {location for location in wanted if location not in self._sizes}
        ours = {location for location in missing if self._is_ours(location)}
        if ours:
            self._make_room(wanted)
            missing -= self._list(ours)
        for location in sorted(missing):
            self._sizes[location] = self._head(location)
        return {location: self._sizes[location] for location in wanted}

    def forget(self, descriptors: Iterable[BatchDescriptor]) -> None:
        """They left the queue."""
        for descriptor in descriptors:
            self._sizes.pop(descriptor.location, None)

    def _is_ours(self, location: str) -> bool:
        """Whether it lies directly in our folder, under a name that sorts by time."""
        folder, _, _name = location.rpartition("/")
        return folder == self._prefix and batch_ulid(location) is not None

    def _list(self, missing: set[str]) -> set[str]:
        """Keep what is listed from the oldest missing one on. Returns which of them were found."""
        found: set[str] = set()
        for info in self._store.list(self._prefix, after=min(missing).removesuffix(_SUFFIX)):
            if info.location in missing:
                found.add(info.location)
            elif len(self._sizes) >= self._kept_max or not self._is_ours(info.location):
                continue
            self._sizes[info.location] = info.size
            if len(found) == len(missing) and len(self._sizes) >= self._kept_max:
                break
        return found

    def _make_room(self, wanted: Sequence[str]) -> None:
        if len(self._sizes) >= self._kept_max:
            self._sizes = {location: self._sizes[location] for location in wanted if location in self._sizes}

    def _head(self, location: str) -> int:
        try:
            return self._store.head(location).size
        except (ObjectNotFound, InvalidInput):  # gone, or no name that a store accepts: the fetch says so
            return 0
