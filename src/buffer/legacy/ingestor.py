"""The Ingestor of the older format: batches key-value pairs, uploads them, appends their locations.

Batching and back-pressure are the producer's `Intake`; one thread flushes what it has sealed. `Flusher` is the part
without threads.

**An append whose answer was lost.** A location is appended at most once. After anything but `Won`, look again:

    it is pending                              it landed
    the manifest is at the version read        it may still land: send it again, under the same condition; of the
                                               two one lands at most
    neither, and the object is gone            it landed, was collected and cleaned up: Collectors delete the
                                               object of a done batch before they remove its location
    neither, and the object is there           it did not land and never will: the manifest never comes back to
                                               an earlier content (see `manifests.py`). Append it anew

For that, a name is uploaded once: an upload without an answer is repeated under a new name, for a late one could
bring an object back that was deleted. What it leaves behind nobody names. (Collectors of the implementation of that
time delete nothing. Beside those, an append that was lost, collected and cleaned up before the look is appended
twice; their own Ingestors do that after any lost answer.)

- The process dies: a batch is pending or it is not; no watcher said durable before it was.
- Out of attempts: `ContentionError` or `StorageError` if nothing can land any more, else `AppendOutcomeUnknown`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias
from uuid import UUID

from buffer.cas import CasObject, Snapshot
from buffer.clock import Clock, SystemClock
from buffer.config import ProducerConfig
from buffer.errors import AppendOutcomeUnknown, BufferQueueError, Closed, InvalidInput, ObjectNotFound, StorageError
from buffer.legacy import manifests
from buffer.legacy.config import IngestorConfig
from buffer.legacy.format import (
    KeyValueEntry,
    batch_location,
    decode_producer_manifest,
    encode_entry,
    encode_producer_manifest,
    join_entries,
)
from buffer.produce.durability import DurabilityWatcher, Durable, Settled
from buffer.produce.intake import Intake, PendingBatch, check_call
from buffer.stopping import close_after, join_once
from buffer.store.base import CanHead, CanPut, CanSwap, Won
from buffer.store.open import open_store

WriteWatcher: TypeAlias = DurabilityWatcher
"""`result()` is None until it is known; `await_durable(timeout)` waits."""

NO_SEQUENCE = -1  # the older format has none
CALLS_MAX = 1 << 31  # what is accepted is bounded by its bytes alone
TICK_MIN_S = 0.001  # a clock that stands still must not make the thread spin


class CanIngest(CanSwap, CanPut, CanHead, Protocol):
    """What an Ingestor needs of a store."""


class Flusher:
    """Uploads batches and appends their locations. No threads: one caller at a time."""

    def __init__(self, store: CanIngest, config: IngestorConfig, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._prefix = config.data_path_prefix
        self._manifest = CasObject(store, config.manifest_path, clock, timeout_s=config.append_timeout_s)

    def flush(self, batches: Sequence[bytes]) -> list[Settled]:
        """Make these encoded batches durable, in one append; returns what became of each. Raises nothing of ours."""
        settled: list[Settled] = []
        for data in batches:
            try:
                settled.append(Durable(NO_SEQUENCE, self._upload(data)))
            except BufferQueueError as error:
                settled.append(error)
        uploaded = [each.location for each in settled if isinstance(each, Durable)]
        try:
            self._append(uploaded)
        except BufferQueueError as error:
            return [error if isinstance(each, Durable) else each for each in settled]
        return settled

    def _upload(self, data: bytes) -> str:
        trouble: StorageError | None = None
        for _ in self._manifest.attempts():
            location = batch_location(self._prefix, self._new_uuid())
            try:
                self._store.put(location, data)
            except StorageError as error:
                if not error.retryable:
                    raise
                trouble = error
            else:
                return location
        assert trouble is not None, "there is at least one attempt"
        raise trouble

    def _new_uuid(self) -> UUID:
        """Version 4, from the clock's own chance: two ULIDs have more of it than a UUID can hold."""
        chance = self._clock.new_ulid() + self._clock.new_ulid()
        return UUID(bytes=hashlib.blake2b(chance.encode(), digest_size=16).digest(), version=4)

    def _append(self, locations: list[str]) -> None:
        """Append what is not pending. Raises ContentionError or StorageError if surely none of it is, nor will be."""
        sent: Snapshot | None = None
        trouble: Exception | None = None
        tried = 0
        for attempt in self._manifest.attempts():
            tried = attempt + 1
            try:
                seen, locations, sent = self._look(locations, sent)
                if not locations:
                    return
                before = decode_producer_manifest(seen.data, self._manifest.location)
                outcome = self._manifest.write(seen, encode_producer_manifest(manifests.append(before, locations)))
            except StorageError as error:
                trouble = error
                if not error.retryable:
                    break
                continue
            if isinstance(outcome, Won):
                return
            sent = seen
        try:
            _, locations, sent = self._look(locations, sent)
        except StorageError as error:
            trouble = error
        if not locations:
            return
        if sent is not None:
            raise AppendOutcomeUnknown(
                f"the append of {len(locations)} batches to {self._manifest.location!r} was not answered and may "
                "still land: look for them there before ingesting the same pairs again",
                location=self._manifest.location,
                locations=tuple(locations),
            ) from trouble
        if isinstance(trouble, StorageError) and not trouble.retryable:
            raise trouble
        raise self._manifest.contention(tried) from trouble

    def _look(self, locations: list[str], sent: Snapshot | None) -> tuple[Snapshot, list[str], Snapshot | None]:
        """The manifest as it is, what of these is still to be appended, and the attempt that may still land."""
        seen = self._manifest.read()
        pending = set(decode_producer_manifest(seen.data, self._manifest.location).pending)
        missing = [location for location in locations if location not in pending]
        if sent is None or seen.version == sent.version:
            return seen, missing, sent
        return seen, [location for location in missing if self._is_there(location)], None

    def _is_there(self, location: str) -> bool:
        try:
            self._store.head(location)
        except ObjectNotFound:
            return False
        return True


class Ingestor:
    """Puts key-value pairs into a queue of the older format. Use it as a context manager, or call `close()`.

    Calls may come from any thread. It belongs to the process that made it: in a forked child `ingest` raises Closed.
    After an exit without `close()`, what no watcher reported durable may be lost.
    """

    def __init__(self, config: IngestorConfig, *, clock: Clock | None = None) -> None:
        """Opens the store, but writes nothing to it before there is something to flush."""
        self.config = config
        self._clock = clock or SystemClock()
        limits = ProducerConfig(
            store=config.store,
            store_options=config.store_options,
            flush_interval_ms=config.flush_interval_ms,
            flush_size_bytes=config.flush_size_bytes,
            max_buffered_bytes=config.max_unflushed_bytes,
            max_buffered_inputs=CALLS_MAX,
        )
        self._max_batch_bytes = limits.max_batch_bytes
        self._intake = Intake(limits, self._clock)
        self._flusher = Flusher(open_store(config.store, **config.store_options), config, self._clock)
        self._failed: BufferQueueError | None = None
        """The first failure that no `close` has reported."""
        self._changed = threading.Condition()
        self._closed = False
        self._closing: set[int] = set()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="buffer-legacy-ingestor", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, **settings: Any) -> Self:
        """An Ingestor from the settings of `IngestorConfig`: `Ingestor.open(store="./queue")`."""
        return cls(IngestorConfig(**settings))

    def ingest(self, entries: list[KeyValueEntry]) -> WriteWatcher:
        """Accept pairs: they go into one batch together, in this order.

        Returns as soon as they are buffered. While `max_unflushed_bytes` is reached it flushes, and blocks. Raises
        InvalidInput for no entries or wrong types, and Closed; then nothing was accepted.
        """
        encoded = [_encode(index, entry) for index, entry in enumerate(entries)]
        call = check_call(encoded, b"", self._max_batch_bytes)
        if os.getpid() != self._pid:
            raise Closed(f"this Ingestor was made in process {self._pid}: make one after the fork")
        if self._is_mine():
            raise InvalidInput(
                "ingest was called by a signal handler, or a destructor, in the middle of a call of the same Ingestor: "
                "set a flag there, and ingest when that call has returned"
            )
        try:
            with self._changed:
                while True:
                    if self._closed:
                        raise Closed("the Ingestor is closed: make a new one")
                    handle = self._intake.offer(call)
                    self._changed.notify_all()
                    if handle is not None:
                        return handle.watcher
                    self._changed.wait()
        finally:
            if self._closed:  # by a signal handler in the middle of this call, perhaps: see `close`
                join_once(self._thread, self._closing)

    def close(self) -> None:
        """Accept no more, flush, and end the thread. Raises the first failure that no `close` has reported.

        A signal handler may call it. If it has interrupted `ingest` it returns at once, and `ingest` does it before it
        returns or raises.
        """
        if os.getpid() != self._pid:
            return
        is_mine = self._is_mine()  # then the thread waits for this one
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if is_mine or not join_once(self._thread, self._closing):
            return
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _is_mine(self) -> bool:
        """Whether this thread holds the lock: then this has interrupted a call of it."""
        return bool(self._changed._is_owned())  # type: ignore[attr-defined]

    def _run(self) -> None:
        while batches := self._next_batches():
            try:
                settled = self._flusher.flush([join_entries(batch.entries()) for batch in batches])
            except BaseException as error:  # noqa: BLE001 - a panic in a native library, too: the watchers must learn of it
                settled = [_unforeseen(error)] * len(batches)
            with self._changed:
                for batch, outcome in zip(batches, settled, strict=True):
                    self._intake.release(batch)
                    if not isinstance(outcome, Durable):
                        self._failed = self._failed or outcome
                    batch.watcher.settle(outcome)
                self._changed.notify_all()

    def _next_batches(self) -> list[PendingBatch]:
        """Wait for sealed batches; none once it is closed and all are flushed."""
        with self._changed:
            while True:
                if self._closed:
                    self._intake.seal()
                self._intake.seal_if_due()
                if self._intake.sealed or self._closed:
                    return [self._intake.take() for _ in range(len(self._intake.sealed))]
                deadline_s = self._intake.deadline_s
                self._changed.wait(
                    None if deadline_s is None else max(TICK_MIN_S, deadline_s - self._clock.monotonic_s())
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close_after(error, self.close, "Ingestor")

    def __repr__(self) -> str:
        return f"Ingestor(manifest_path={self.config.manifest_path!r})"


def _encode(index: int, entry: KeyValueEntry) -> bytes:
    if not isinstance(entry, KeyValueEntry):
        raise InvalidInput(f"entry {index} must be a KeyValueEntry, not {type(entry).__name__}")
    if not isinstance(entry.key, bytes) or not isinstance(entry.value, bytes):
        raise InvalidInput(
            f"key and value of entry {index} must be bytes, not {type(entry.key).__name__} and "
            f"{type(entry.value).__name__}"
        )
    return encode_entry(entry)


def _unforeseen(cause: BaseException) -> AppendOutcomeUnknown:
    error = AppendOutcomeUnknown(
        f"a flush ended with {type(cause).__name__}: {cause}; look for the pairs before ingesting them again"
    )
    error.__cause__ = cause
    return error
