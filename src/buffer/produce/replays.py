"""Calls that the queue has already, by their marks: are their batches there? A mark alone does not say so.

An append that lands a day late leaves an entry with its mark, and perhaps no batch (`groups.LateLook`). Whoever made
that append may know it, and whoever repeats the call later does not:

- It saw that the batch is gone, or could not see it: its handle said so. A later run remembers no handles.
- It died between the append and its look: nobody has looked.
- The reply was lost until time was up: the call is to be repeated, and the repetition is the first that can look.
- An older process woke up, and its append landed after this one had opened: the mark is found by our own append.

So **nobody says that a call is in the queue before looking at the objects of the entries that carry it**, whatever was
found before, and by whomever:

    a replay's conflict            `Replays.doubts`, when it is produced, or when its append finds the mark
    "go on behind the mark"        `Replays.check_newest`: `next_client_seq` says that all before it is there
    a call of others' uploads      the same `doubts`, in `adopt.append_uploads`

What is gone is BatchCollected, what nobody can see is AppendOutcomeUnknown. Nothing is put back: a reader may have met
the hole, and gone past it. An entry that has left the manifest is no hole any more: its readers are done with it, and
a batch that they did not find they have reported.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from buffer.clients import ClientLedger
from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import AppendOutcomeUnknown, BatchCollected, Doubt, StorageError
from buffer.manifest import Manifest
from buffer.marks import Mark, mark_of
from buffer.produce.durability import DurabilityWatcher, Durable, WriteHandle
from buffer.produce.groups import LATE_LOOKS, LateLook, queue_producer
from buffer.store.base import CanHead, CanSwap


class CanReplay(CanSwap, CanHead, Protocol):
    """What looking at replays needs of a store."""


class Carried(NamedTuple):
    """An entry of the queue, and which calls of a client it carries: those from `first` to `last` that were made."""

    first: int
    last: int
    sequence: int
    location: str


def carried(manifest: Manifest, client_id: str, left_seq: int = -1) -> list[Carried]:
    """The entries of one client. `left_seq` is its largest number among those that have left: see `Replays`.

    The mark of an entry is the largest number in it. So the others are behind the mark before it.
    """
    found: list[Carried] = []
    for entry in manifest:
        mark = mark_of(entry.metadata)
        if mark is None or mark[0] != client_id:
            continue
        last = found[-1].last if found else left_seq
        first = found[-1].first if found and last == mark[1] else last + 1
        found.append(Carried(first, mark[1], entry.sequence, entry.location))
    return found


class Replays:
    """Looks at the calls of earlier runs of one client. A look is made once for each entry. Safe from any thread."""

    def __init__(self, client_id: str, store: CanReplay, clock: Clock, config: ProducerConfig) -> None:
        self._client_id = client_id
        self._store = store
        self._clock = clock
        self._config = config
        self._look = LateLook(store, clock, config)
        self._entries: list[Carried] | None = None
        self._seen: dict[int, Durable | BatchCollected] = {}

    def doubts(self, first: int, last: int) -> tuple[Doubt, ...]:
        """Which of these calls, all of them at or below the mark, may have no batch; and what is known of it."""
        try:
            entries = self._entries if self._entries is not None else self._read()
        except StorageError as error:
            return (Doubt(first, last, self._unseen(first, error)),)
        self._entries = entries
        return self._looked([entry for entry in entries if entry.first <= last and first <= entry.last])

    def check_newest(self, mark: Mark | None) -> None:
        """Look at what came into the queue with the client's `mark`, if that may have been a day late. Raises the hole.

        Only there: a run that went on behind an older mark has looked at what was before, or was told. A mark that is
        young costs nothing.
        """
        if mark is None or not self._look.may_be_late(mark.batch, slack_s=self._config.gc_grace_s):
            return
        try:
            entries = self._read()
        except StorageError as error:
            raise self._unseen(mark.client_seq, error) from error
        ends = [entry.sequence + len(entries) - place for place, entry in enumerate(entries)]
        newest = [entry for entry, end in zip(entries, ends, strict=True) if end == ends[-1]]  # without a gap
        for doubt in self._looked([entry for entry in newest if self._look.may_be_late(entry.location)]):
            raise doubt.error

    def settled(self, handle: WriteHandle, opened_at: int) -> WriteHandle:
        """The handle of a replay, once its calls up to `opened_at` were looked at; another one if one is in doubt."""
        given = handle.client_seq
        assert given is not None, "a replay has a number"
        first, last = (given[0], given[-1]) if isinstance(given, range) else (given, given)
        doubts = self.doubts(first, min(last, opened_at))
        if not doubts:
            return handle
        watcher = DurabilityWatcher()
        watcher.settle(doubts[0].error)
        return WriteHandle(watcher, handle.ingestion_time_ms, given)

    def _read(self) -> list[Carried]:
        """As persistent as the look at an object: what a hiccup hides from it is as unknown."""
        for attempt in LATE_LOOKS.attempts(self._clock):
            try:
                return self._read_once()
            except StorageError as error:
                if not error.retryable or attempt + 1 == LATE_LOOKS.attempts_max:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _read_once(self) -> list[Carried]:
        manifest = self._manifest()
        entries = carried(manifest, self._client_id)
        if not entries:
            return entries
        ledger = ClientLedger(
            self._store, self._config.manifest_path, self._clock, timeout_s=self._config.append_timeout_s
        )
        section = ledger.read()  # after the manifest
        kept = section.marks.get(self._client_id) if section is not None else None
        # It is kept before its entry leaves. One that is still here does not say what left before it.
        has_left = kept is not None and kept.sequence < manifest.first_sequence
        return carried(manifest, self._client_id, kept.client_seq) if kept is not None and has_left else entries

    def _manifest(self) -> Manifest:
        return queue_producer(self._store, self._clock, self._config).read()

    def _looked(self, entries: list[Carried]) -> tuple[Doubt, ...]:
        new = [Durable(entry.sequence, entry.location) for entry in entries if entry.sequence not in self._seen]
        outcomes = dict(zip((entry.sequence for entry in new), self._look.again(new, self._manifest), strict=True))
        for sequence, outcome in outcomes.items():
            if isinstance(outcome, Durable | BatchCollected):  # what could not be seen is looked at again
                self._seen[sequence] = outcome
        found = [(entry, outcomes.get(entry.sequence) or self._seen[entry.sequence]) for entry in entries]
        return tuple(Doubt(entry.first, entry.last, what) for entry, what in found if not isinstance(what, Durable))

    def _unseen(self, client_seq: int, cause: StorageError) -> AppendOutcomeUnknown:
        path = self._config.manifest_path
        error = AppendOutcomeUnknown(
            f"call {client_seq} of client {self._client_id!r} is in {path!r} by its mark, and nobody could see whether "
            f"its batch is there ({cause}); repeat it under the same client_seq to have it looked at again",
            location=path,
        )
        error.__cause__ = cause
        return error
