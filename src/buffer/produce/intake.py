"""Which calls form a batch, when it is closed, and when `produce` must wait. Decisions only.

`Intake` has no threads, no locks and sleeps nowhere: the producer guards it with one lock, a simulator drives it
step by step.

    offer ──▶ open batch ──seal──▶ sealed batches ──take──▶ (upload, append) ──release──▶ room again

- A batch is sealed when it reaches `flush_size_bytes`, when its deadline has passed (counted from its first
  entry), when somebody asks (`seal`), or when a call must wait for bytes: what is open has to move then.
  A call that finds the deadline passed seals the batch itself, so a busy caller cannot starve the timer.
- Back-pressure by bytes counts everything accepted and not released. By calls it counts the ones in sealed
  batches that nobody took and, while there are such batches, the ones in the open batch.
- Sizes are those on the wire: 4 bytes and its length per entry, 16 and its payload per call. So zero-length
  entries count too, and what a batch adds to the manifest is bounded with it.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from buffer.clock import Clock
from buffer.codec.batch import encode_batch_parts
from buffer.config import ProducerConfig
from buffer.errors import InvalidInput
from buffer.manifest import PackedMetadata
from buffer.marks import encode_mark, marked
from buffer.produce.durability import DurabilityWatcher, WriteHandle

ENTRY_OVERHEAD_BYTES = 4
CALL_OVERHEAD_BYTES = 16

Entries: TypeAlias = "list[bytes] | tuple[bytes, ...] | pa.Array | pa.ChunkedArray"
"""What `produce` takes: bytes in a list, or an Arrow array of binary values."""

Call: TypeAlias = "tuple[list[bytes] | tuple[pa.Array, ...], int, int]"
"""A call that was checked: its own copy of the list, or the Arrow chunks; how many entries; their bytes on the
wire. A plain tuple, for it is made on every call."""


def check_call(entries: Entries, metadata: bytes, max_batch_bytes: int) -> Call:
    """Copy, check and measure one call. Raises InvalidInput, naming what is wrong and where."""
    if type(entries) is list and len(entries) == 1 and type(metadata) is bytes:  # made for many small calls
        entry = entries[0]
        if type(entry) is bytes and len(entry) <= max_batch_bytes - ENTRY_OVERHEAD_BYTES:
            return [entry], 1, len(entry) + ENTRY_OVERHEAD_BYTES
    if not isinstance(metadata, bytes):
        raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
    if isinstance(entries, list | tuple):
        call = _check_list(list(entries))
    elif isinstance(entries, pa.Array | pa.ChunkedArray):
        call = _check_arrow(entries)
    else:
        hint = "; for a single entry pass [entry]" if isinstance(entries, bytes | bytearray | str) else ""
        raise InvalidInput(
            f"entries must be a list of bytes or an Arrow binary array, not {type(entries).__name__}{hint}"
        )
    _, count, block_bytes = call
    if count == 0:
        raise InvalidInput("a call needs at least one entry; an entry may have zero length")
    if block_bytes > max_batch_bytes:
        raise InvalidInput(
            f"a call of {count:,} entries takes {block_bytes:,} bytes, but max_batch_bytes is "
            f"{max_batch_bytes:,}: split the call, for readers refuse larger batches"
        )
    return call


def _check_list(entries: list[bytes]) -> Call:
    count = len(entries)
    if set(map(type, entries)) - {bytes}:
        for index, entry in enumerate(entries):
            if not isinstance(entry, bytes):
                raise InvalidInput(f"entry {index} must be bytes, not {type(entry).__name__}")
    return entries, count, sum(map(len, entries)) + ENTRY_OVERHEAD_BYTES * count


def _check_arrow(entries: pa.Array | pa.ChunkedArray) -> Call:
    kind = entries.type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise InvalidInput(
            f"an Arrow array of entries must be of type binary or large_binary, not {kind}: cast it first"
        )
    if entries.null_count:
        index = pc.index(pc.is_null(entries), True).as_py()
        raise InvalidInput(f"entry {index} is null; an entry must be bytes, perhaps of zero length")
    count = len(entries)
    payload_bytes = pc.sum(pc.binary_length(entries)).as_py() or 0
    chunks = tuple(entries.chunks) if isinstance(entries, pa.ChunkedArray) else (entries,)
    return chunks, count, payload_bytes + ENTRY_OVERHEAD_BYTES * count


class PendingBatch:
    """Calls that become one object in the store and one entry of the manifest.

    Filled by `Intake`, then owned by whoever took it. Whoever uploads it sets `location` and `valid_until_s`.
    """

    __slots__ = (
        "_heads",
        "_parts",
        "_payloads",
        "_tail",
        "block_bytes",
        "calls",
        "data",
        "deadline_ms",
        "deadline_s",
        "entry_count",
        "first_seq",
        "last_seq",
        "location",
        "metadata",
        "ready_since_s",
        "sealed_s",
        "size",
        "valid_until_s",
        "watcher",
    )

    def __init__(self, deadline_s: float = inf, deadline_ms: float = inf) -> None:
        self.watcher = DurabilityWatcher()
        self.deadline_s = deadline_s
        """Monotonic time at which the batch must be sealed, whatever it holds."""
        self.deadline_ms = deadline_ms
        """The same on the wall clock, which every call reads anyway. It may jump: a hint, never the only one."""
        self.calls = 0
        self.entry_count = 0
        self.block_bytes = 0
        self.size = 0
        """What it counts for back-pressure: the entries' block and what its calls add to the manifest."""
        self.sealed_s = 0.0
        self._parts: list[list[bytes] | pa.Array] = []
        self._tail: list[bytes] | None = None
        self._heads: list[int] = []
        """Of each call its first entry's index, then its time of ingestion: one list grows faster than two."""
        self._payloads: list[bytes] | None = None  # as long as every payload is empty
        self.first_seq: int | None = None
        self.last_seq: int | None = None
        """The client_seqs of its first and its last call; None without a client id."""
        self.data: memoryview | None = None
        self.metadata: PackedMetadata | None = None
        self.location: str | None = None
        """Where it was uploaded; None until it was."""
        self.valid_until_s = inf
        """Monotonic time until which the name it has may be appended."""
        self.ready_since_s: float | None = None
        """Monotonic time at which only the append was missing."""

    @property
    def payload_bytes(self) -> int:
        """The entries' own bytes."""
        return self.block_bytes - ENTRY_OVERHEAD_BYTES * self.entry_count

    def add(
        self, call: Call, metadata: bytes, size: int, now_ms: int, client_seq: int | range | None = None
    ) -> WriteHandle:
        """Take one checked call in. Its numbers are larger than those before it, and all calls have some or none."""
        entries, count, block_bytes = call
        listed = None if isinstance(entries, tuple) else entries
        first_seq: int | None = None
        last_seq: int | None = None
        if isinstance(client_seq, range):
            first_seq, last_seq = client_seq[0], client_seq[-1]
        elif client_seq is not None:
            first_seq = last_seq = client_seq
        # From here on nothing is called: CPython runs the handlers of signals between calls, so whatever one of them
        # raises, the call is in the batch as a whole or not at all.
        self._heads += (self.entry_count, now_ms)
        if self._payloads is not None:
            self._payloads += (metadata,)
        elif metadata:
            self._payloads = [*[b""] * self.calls, metadata]
        self.calls += 1
        self.entry_count += count
        self.block_bytes += block_bytes
        self.size += size
        if listed is None:
            self._parts += entries
            self._tail = None
        elif self._tail is not None:
            self._tail += listed
        else:
            self._tail = listed  # its own copy, see check_call
            self._parts += (listed,)
        if last_seq is not None:
            if self.first_seq is None:
                self.first_seq = first_seq
            self.last_seq = last_seq
        return WriteHandle(self.watcher, now_ms, client_seq)

    def entries(self) -> list[bytes]:
        """As they came, of a batch of lists that was not encoded."""
        return [entry for part in self._parts if isinstance(part, list) for entry in part]

    def encode(self, compression: str, client_id: str | None = None) -> memoryview:
        """The object's bytes. The entries are let go: from here on there is one copy of them, encoded.

        With a client id the metadata gets that client's mark at its head.
        """
        if self.data is None:
            data = encode_batch_parts(self._parts, compression)
            metadata = PackedMetadata.pack(self._heads[::2], self._heads[1::2], self._payloads)
            if client_id is not None:
                assert self.last_seq is not None, "every call of a client has a number"
                metadata = marked(metadata, encode_mark(client_id, self.last_seq))
            self.metadata = metadata
            self.data = data
            self._parts, self._heads, self._tail, self._payloads = [], [], None, None
        return self.data


class Intake:
    """The batch that is being filled, the ones that wait to be taken, and how much more may come."""

    def __init__(self, config: ProducerConfig, clock: Clock) -> None:
        self.open: PendingBatch | None = None
        self.sealed: deque[PendingBatch] = deque()
        self._monotonic_s = clock.monotonic_s
        self._now_ms = clock.now_ms
        self._interval_s = config.flush_interval_ms / 1000
        self._flush_size_bytes = config.flush_size_bytes
        self._max_batch_bytes = config.max_batch_bytes
        self._max_buffered_bytes = config.max_buffered_bytes
        self._max_buffered_inputs = config.max_buffered_inputs
        self._buffered_bytes = 0
        self._sealed_calls = 0

    def offer(self, call: Call, metadata: bytes = b"", client_seq: int | range | None = None) -> WriteHandle | None:
        """Accept a call, or return None: it has to wait until a batch was taken or released."""
        size = call[2] + CALL_OVERHEAD_BYTES + len(metadata)
        batch = self.open
        if (
            batch is None
            or self.sealed
            or self._buffered_bytes + size > self._max_buffered_bytes
            or batch.size + size > self._max_batch_bytes
        ):
            batch = self._batch_with_room(size)
            if batch is None:
                return None
        now_ms = self._now_ms()
        before = batch.size
        try:
            handle = batch.add(call, metadata, size, now_ms, client_seq)
        finally:  # as much as went in: a signal's handler may raise on the way
            self._buffered_bytes += batch.size - before
        if batch.size >= self._flush_size_bytes or now_ms >= batch.deadline_ms:
            self.seal()
        return handle

    def _batch_with_room(self, size: int) -> PendingBatch | None:
        if self._buffered_bytes and self._buffered_bytes + size > self._max_buffered_bytes:
            self.seal()  # nobody else would free the room that it takes
            return None
        waiting = self._sealed_calls + (self.open.calls if self.open else 0)
        if self.sealed and waiting >= self._max_buffered_inputs:
            return None
        if self.open and self.open.size + size > self._max_batch_bytes:
            self.seal()
        if self.open is None:
            self.open = PendingBatch(self._monotonic_s() + self._interval_s, self._now_ms() + 1000 * self._interval_s)
        return self.open

    @property
    def deadline_s(self) -> float | None:
        """When the open batch must be sealed; None if there is none."""
        return self.open.deadline_s if self.open else None

    def seal_if_due(self) -> None:
        if self.open and self._monotonic_s() >= self.open.deadline_s:
            self.seal()

    def seal(self) -> None:
        """Close the open batch, if there is one: nothing joins it any more."""
        batch = self.open
        if batch:
            batch.sealed_s = self._monotonic_s()
            self._sealed_calls += batch.calls
            try:
                self.sealed.append(batch)
            finally:  # also if a signal's handler raises: in both places it would get into the queue twice
                self.open = None  # last: a fork in between must find the batch somewhere

    def take(self) -> PendingBatch:
        """The oldest of the sealed batches, now the caller's; `release` it when it is durable or failed."""
        batch = self.sealed.popleft()
        self._sealed_calls -= batch.calls
        return batch

    def release(self, batch: PendingBatch) -> None:
        """A batch that was taken is settled: its bytes are no longer buffered."""
        self._buffered_bytes -= batch.size
        assert self._buffered_bytes >= 0, "a batch was released twice"

    @property
    def newest(self) -> PendingBatch | None:
        """Of the batches that nobody took, the one with the newest call."""
        return self.open or (self.sealed[-1] if self.sealed else None)

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.sealed
