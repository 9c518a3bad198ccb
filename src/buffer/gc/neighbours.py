"""Whether a second queue lives in a collector's folder: its batches would look like orphans and be deleted.

An object that lies directly in the folder and is neither a batch nor our manifest or its ledger is a **stranger**.
One that reads as a manifest gives another queue away, whatever its name. Each is read, but once per version. What
is too large or too many to be read counts as a manifest: when in doubt, batches stay.

What nobody can see from the folder: a queue whose manifest lies elsewhere and whose data_path_prefix points here.
"""

from __future__ import annotations

from collections.abc import Sequence

from buffer.errors import CorruptManifest, InvalidInput, ObjectNotFound, ObjectTooLarge
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.store.base import CanPoll, ObjectInfo, Version

STRANGERS_MAX = 1000  # a cycle asks the store about each of them
STRANGER_BYTES_MAX = 256 << 20  # it is read into memory, as our own manifest is
MANIFEST_BYTES_MIN = len(Manifest.empty().to_bytes())

_WAY_OUT = (
    "Give each queue a folder of its own, by a manifest_path in another folder or by data_path_prefix, and move what "
    "belongs to no queue, like a backup, out of it"
)


class Neighbours:
    """Looks at the strangers in one queue's folder, and remembers which are harmless."""

    def __init__(self, store: CanPoll, manifest_path: str, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._manifest_path = manifest_path
        self._ours = (manifest_path, ledger_path(manifest_path))
        self._harmless: dict[str, Version] = {}
        """The version in which each was seen to be no manifest."""

    def note(self, item: ObjectInfo, strangers: list[ObjectInfo]) -> None:
        """Add to the strangers an object that lies directly in the folder and is not a batch, if it is one."""
        # Less than a footer is no manifest; and one more than the bound tells that there are too many.
        could_be = item.location not in self._ours and item.size >= MANIFEST_BYTES_MIN
        if could_be and len(strangers) <= STRANGERS_MAX:
            strangers.append(item)

    def problem(self, strangers: Sequence[ObjectInfo]) -> str | None:
        """Why the folder cannot be taken for ours alone, and the way out. Raises StorageError."""
        self._harmless = {s.location: v for s in strangers if (v := self._harmless.get(s.location)) is not None}
        if len(strangers) > STRANGERS_MAX:
            return (
                f"the folder {self._prefix!r} holds more than {STRANGERS_MAX:,} objects that are no batches, too many "
                f"to see whether one of them is another queue's manifest. {_WAY_OUT}"
            )
        for stranger in strangers:
            if stranger.size > STRANGER_BYTES_MAX:
                return (
                    f"{stranger.location!r} has {stranger.size:,} bytes, too many to see whether it is another queue's "
                    f"manifest. {_WAY_OUT}"
                )
            if self._is_manifest(stranger):
                return (
                    f"{stranger.location!r} is a manifest too, so the batches in {self._prefix!r} may be another "
                    f"queue's than {self._manifest_path!r}. {_WAY_OUT}"
                )
        return None

    def _is_manifest(self, item: ObjectInfo) -> bool:
        seen = self._harmless.get(item.location)
        if seen is not None and seen == item.version:
            return False
        try:
            # Where a listing tells no versions, the store is asked; what has not changed is not transferred.
            found = self._store.get_if_changed(item.location, seen) if seen else self._store.get(item.location)
        except (ObjectNotFound, InvalidInput, ObjectTooLarge):  # gone meanwhile, or as no manifest can be
            return False
        if found is None:
            return False
        try:
            Manifest.from_bytes(found.data)
        except CorruptManifest:
            self._harmless[item.location] = found.version
            return False
        return True
