"""Objects of OpenData's Go producer, `{prefix}/{run ULID}/{ordinal}`: which of them may go. Asked for by `gc_foreign`.

Such a name tells when the run began, not when the object was made, and a run lasts for days. Nor does its maker promise
what ours do, to upload a batch again before its name gets old. So the rules are these; each line names the loss it
prevents:

    gc_foreign was asked for                  whatever else its owner keeps there
    no entry of the manifest names it         a batch that waits in the queue. Run and ordinal are compared, no path
    the store says that it was written        a batch whose append is still under way: no request lives for a day. The
    more than a day ago                       run's ULID must be as old, or the store's clock is wrong
    the look before found the same            … and whatever a single look may have got wrong
    the manifest has not changed since        an append that lands between our reading of the manifest and the delete
    this cycle has read it

A producer counts its objects, so in a run they get younger by the ordinal: the first that is too young ends the asking,
and what the look before has found is not asked for again. Nothing else is remembered: what was dequeued before a
restart goes, too, and so does what a producer has uploaded and never appended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from buffer.config import QUIET_GRACE_S
from buffer.errors import ObjectNotFound
from buffer.manifest import Manifest
from buffer.names import ForeignBatch, foreign_batch, foreign_location, ulid_time_ms
from buffer.store.base import CanHead

FOREIGN_AGE_MS = QUIET_GRACE_S * 1000
ASKED_MAX = 10_000
"""Objects that a cycle asks the store about: the next one goes on."""


def runs_to_ask(listed: Iterable[ForeignBatch], manifest: Manifest, now_ms: int) -> list[tuple[str, list[int]]]:
    """The ordinals of each run that no entry names, in order; of runs that are old enough. Pure."""
    named = {foreign_batch(entry.location) for entry in manifest}
    runs: dict[str, list[int]] = defaultdict(list)
    for batch in listed:
        if batch not in named and now_ms - ulid_time_ms(batch.run_ulid) > FOREIGN_AGE_MS:
            runs[batch.run_ulid].append(batch.ordinal)
    return [(run, sorted(ordinals)) for run, ordinals in sorted(runs.items())]


def old_enough(
    runs: Iterable[tuple[str, list[int]]], store: CanHead, prefix: str, now_ms: int, known: Collection[str]
) -> list[str]:
    """The locations of those that were written more than a day ago, as far as a cycle asks. Raises StorageError.

    `known` are old enough: objects do not get younger.
    """
    found: list[str] = []
    left = ASKED_MAX
    for run, ordinals in runs:
        for ordinal in ordinals:
            location = foreign_location(prefix, ForeignBatch(run, ordinal))
            if location not in known:
                if left == 0:
                    return found
                left -= 1
                try:
                    written_ms = store.head(location).modified_ms
                except ObjectNotFound:
                    continue  # somebody else has deleted it
                if written_ms is None or now_ms - written_ms <= FOREIGN_AGE_MS:
                    break
            found.append(location)
    return found
