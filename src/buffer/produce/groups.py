"""What all ways into the queue share: batches that go in together, under names that are still valid, and a late look.

- A batch whose name is no longer valid (`upload.py` says how long it is) gets a new one, and only inside `draw`, where
  no earlier attempt to append it can still land (see `queue.py`).
- **A late win.** A write that was sent in time can land a day later: the machine slept, the manifest did not change.
  By then the collector may have deleted the batch (`upload.safe_until_s`). So before anybody says durable of it,
  `LateLook` looks whether the object is there, and once more after a pause, for a delete may be under way. One that
  is gone is `BatchCollected`. If nobody can see it, that is not known, with a client id too: the mark is in the queue,
  so a repetition would find that and nothing else. Who repeats the call looks again: `replays.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from buffer import metrics
from buffer.attempts import AppendGroup, ClientSpan
from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import AppendOutcomeUnknown, BatchCollected, ObjectNotFound, StorageError
from buffer.manifest import Manifest, PackedMetadata
from buffer.names import batch_ulid, ulid_time_ms
from buffer.produce.durability import Durable
from buffer.produce.upload import name_valid_s, safe_until_s
from buffer.queue import QueueProducer, manifest_observer
from buffer.store.base import CanHead, CanSwap

RENAME_ROUNDS_MAX = 3  # a store too slow for the grace period is reported, not chased

LATE_LOOKS = Backoff(first_s=1.0, max_s=4.0, attempts_max=6)
"""For a store that fails, on top of what its own client repeats."""
LATE_LOOK_PAUSE_S = 60.0  # a delete that was sent before our append landed has arrived by then


class Named(Protocol):
    """A batch that was uploaded, with the name it has for now."""

    @property
    def location(self) -> str | None: ...

    @property
    def metadata(self) -> PackedMetadata | None: ...

    @property
    def valid_until_s(self) -> float: ...


_N = TypeVar("_N", bound=Named)


def rename_stale(group: Sequence[_N], rename: Callable[[_N], None], clock: Clock, valid_s: float) -> None:
    """Give new names to those whose names are no longer valid, until all are. Only while nothing is in flight."""
    for _ in range(RENAME_ROUNDS_MAX):
        stale = [batch for batch in group if clock.monotonic_s() > batch.valid_until_s]
        if not stale:
            return
        for batch in stale:
            rename(batch)
    raise StorageError(
        f"uploading {len(group)} batches takes longer than half of gc_grace_s, {valid_s:g} s: use "
        "smaller batches, or a longer gc_grace_s for producers and collector alike",
        retryable=True,
    )


def append_group(group: Sequence[Named], client_seqs: ClientSpan | None = None) -> AppendGroup:
    return AppendGroup(
        entries=[(batch.location or "", batch.metadata or ()) for batch in group],
        valid_until_s=min(batch.valid_until_s for batch in group),
        client_seqs=client_seqs,
    )


def queue_producer(store: CanSwap, clock: Clock, config: ProducerConfig) -> QueueProducer:
    return QueueProducer(
        store,
        config.manifest_path,
        clock,
        timeout_s=config.append_timeout_s,
        observe=manifest_observer("producer"),
    )


class LateLook:
    """Tells of batches whose append has landed whether they are durable."""

    def __init__(self, store: CanHead, clock: Clock, config: ProducerConfig) -> None:
        self._store = store
        self._clock = clock
        self._config = config

    def settled(self, landed: Iterable[tuple[int, Named]]) -> list[Durable | AppendOutcomeUnknown]:
        """`Durable` for each that is, or the error that says what is known. Call it right after the append landed."""
        now_s = self._clock.monotonic_s()
        found: list[Durable | AppendOutcomeUnknown] = []
        late: list[int] = []
        for sequence, batch in landed:
            if now_s > safe_until_s(batch.valid_until_s, self._config):
                late.append(len(found))
            found.append(Durable(sequence, batch.location or ""))
        for pause_s in (0.0, LATE_LOOK_PAUSE_S) if late else ():
            self._clock.sleep(pause_s)
            for index in late:
                found[index] = self._looked(found[index], "came in a day after it was named")
        return found

    def again(self, entries: Iterable[Durable], read: Callable[[], Manifest]) -> list[Durable | AppendOutcomeUnknown]:
        """The same for entries that stand in the queue, whoever has put them there, and whenever.

        All are looked at once, those that may have come too late once more. What has left the manifest that `read`
        gives afterwards is no hole: readers are done with it.
        """
        found: list[Durable | AppendOutcomeUnknown] = list(entries)
        late = [index for index, entry in enumerate(found) if self.may_be_late(entry.location)]
        for pause_s, looked_at in ((0.0, range(len(found))), (LATE_LOOK_PAUSE_S, late)):
            if looked_at:
                self._clock.sleep(pause_s)
            for index in looked_at:
                found[index] = self._looked(found[index], "stands there by its mark")
        if not any(isinstance(outcome, BatchCollected) for outcome in found):
            return found
        try:
            first_sequence = read().first_sequence
        except StorageError:
            return found
        return [
            Durable(outcome.sequence, outcome.location)
            if isinstance(outcome, BatchCollected) and outcome.sequence < first_sequence
            else outcome
            for outcome in found
        ]

    def may_be_late(self, location: str, *, slack_s: float = 0.0) -> bool:
        """Whether an append of this batch that landed just now might be a late win. See `upload.safe_until_s`."""
        ulid = batch_ulid(location)
        if ulid is None:
            return True
        safe_s = safe_until_s(name_valid_s(self._config), self._config) - slack_s
        return self._clock.now_ms() - ulid_time_ms(ulid) > safe_s * 1000

    def _looked(self, landed: Durable | AppendOutcomeUnknown, how: str) -> Durable | AppendOutcomeUnknown:
        if not isinstance(landed, Durable):
            return landed
        facts = {"location": landed.location, "locations": (landed.location,), "expected_sequence": landed.sequence}
        path = self._config.manifest_path
        where = f"the batch {landed.location!r}, sequence {landed.sequence} of {path!r}, {how}"
        try:
            self._is_there(landed.location)
        except ObjectNotFound as error:
            gone = BatchCollected(
                f"{where}, and its object is gone: the collector has deleted it. Unless a reader was faster, its "
                "entries are lost; look for them before producing them again",
                sequence=landed.sequence,
                **facts,
            )
            gone.__cause__ = error
            return gone
        except StorageError as error:
            unknown = AppendOutcomeUnknown(
                f"{where}, and nobody could see whether the collector has deleted it; look for its entries before "
                "producing them again. With a client_seq: repeat the call under it, which looks again",
                **facts,
            )
            unknown.__cause__ = error
            return unknown
        return landed

    def _is_there(self, location: str) -> None:
        trouble: StorageError | None = None
        for _ in LATE_LOOKS.attempts(self._clock):
            try:
                self._store.head(location)
                return
            except StorageError as error:
                if isinstance(error, ObjectNotFound) or not error.retryable:
                    raise
                trouble = error
        assert trouble is not None, "there is one attempt at least"
        raise trouble


def count_flushed(entries: int, payload_bytes: int, stored_bytes: int) -> None:
    metrics.batches_flushed.add(1)
    metrics.entries_flushed.add(entries)
    metrics.bytes_flushed.add(payload_bytes)
    metrics.bytes_written.add(stored_bytes)
