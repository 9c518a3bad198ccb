"""Which batch objects may go. Pure: the rules, and why they are so, stand at the top of `buffer.gc.collector`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from buffer.config import QUIET_GRACE_S
from buffer.manifest import Manifest
from buffer.names import batch_ulid, foreign_batch, ulid_time_ms
from buffer.store.base import Version

QUIET_GRACE_MS = QUIET_GRACE_S * 1000
"""The grace period while the manifest does not change."""


class Refusal(Enum):
    """Why nothing at all may be deleted."""

    MISSING = "missing"
    WENT_BACK = "went back"
    FENCED = "fenced"
    SHARED = "shared"
    """Another queue's manifest lies in the folder of our batches, or something that may be one."""


class Kept(Enum):
    """Why a batch stays, whatever the looks before have found. Of several reasons the first one here counts."""

    IN_QUEUE = "in_queue"
    TOO_YOUNG = "too_young"
    NOT_OLDER = "not_older_than_queue"
    """No entry names it, but it is not older than the oldest one that is named."""
    QUEUE_UNDATED = "queue_undated"
    """The same, because an entry names a batch whose age nobody can tell."""
    LATER = "later_cycle"
    """There are more than one cycle looks at."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a cycle found, for the next one to compare with. Names are ULIDs."""

    version: Version
    """Of the manifest."""
    deletable: frozenset[str]
    proven: frozenset[str] = frozenset()
    """Those for which two looks were done: only their deletion failed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """ULIDs, oldest first."""

    delete: tuple[str, ...] = ()
    """These go: two looks found them deletable."""
    wait: tuple[str, ...] = ()
    """Deletable, but the manifest has not changed since, or nobody looked before."""
    refusal: Refusal | None = None
    quiet: frozenset[str] = frozenset()
    """Those of `delete` that go although the manifest has not changed: only as long as it has not."""
    kept: Mapping[Kept, int] = field(default_factory=dict)
    """How many of the others stay, and why."""

    def look(self, version: Version, kept: Iterable[str] = ()) -> Look:
        """What the next cycle needs to know, when all of `delete` is gone but `kept`.

        Of those, what rested on an unchanged manifest is not proven: it is asked again right before it goes.
        """
        left = frozenset(kept)
        return Look(version, left.union(self.wait), left - self.quiet)


def deletable(
    ulids: Iterable[str],
    manifest: Manifest | None,
    version: Version | None,
    *,
    now_ms: int,
    grace_ms: int,
    previous: Look | None,
    known_next_sequence: int = 0,
) -> Decision:
    """Which of the listed batches may go, by the rules above. Raises CorruptManifest.

    `now_ms` was read before the listing, and the listing before the manifest.
    """
    if manifest is None or version is None:
        return Decision(refusal=Refusal.MISSING)
    if manifest.next_sequence < known_next_sequence:
        return Decision(refusal=Refusal.WENT_BACK)
    referenced: set[str] = set()
    oldest_ms = now_ms
    not_older = Kept.NOT_OLDER
    for entry in manifest:
        ulid = batch_ulid(entry.location)
        if ulid is None and foreign_batch(entry.location) is not None:
            continue  # of another writer: it says nothing about the order of ours, and must not hold them back
        if ulid is None:  # no telling how old it is, so nothing is surely older
            oldest_ms, not_older = 0, Kept.QUEUE_UNDATED
        else:
            referenced.add(ulid)
            oldest_ms = min(oldest_ms, ulid_time_ms(ulid))
    delete: list[str] = []
    wait: list[str] = []
    unchanged: list[str] = []
    kept: Counter[Kept] = Counter()
    for ulid in sorted(ulids):
        made_ms = ulid_time_ms(ulid)
        # The first rule follows from the last, but what matters most does not hang on clocks.
        if ulid in referenced:
            kept[Kept.IN_QUEUE] += 1
            continue
        if now_ms - made_ms <= grace_ms:
            kept[Kept.TOO_YOUNG] += 1
            continue
        if made_ms >= oldest_ms:
            kept[not_older] += 1
            continue
        if previous is None or ulid not in previous.deletable:
            wait.append(ulid)
        elif ulid in previous.proven or version != previous.version:
            delete.append(ulid)
        elif now_ms - made_ms > max(grace_ms, QUIET_GRACE_MS):
            delete.append(ulid)
            unchanged.append(ulid)
        else:
            wait.append(ulid)
    return Decision(tuple(delete), tuple(wait), quiet=frozenset(unchanged), kept=kept)
