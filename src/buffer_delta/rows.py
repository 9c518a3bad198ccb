"""Batches into rows, on Spark's executors. The driver sends descriptors and gets none of the data.

Each task gets one group of descriptors, fetches them (the next one while the last is parsed), and yields Arrow
record batches: the format's columns, then where each row came from, then, with `split`, the dead letters.
Everything here is a pure function of the batches' bytes and the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from buffer.errors import BufferQueueError, CorruptBatch, InvalidConfig, ObjectNotFound
from buffer.fetch import FetchHandle
from buffer.model import BatchDescriptor, Metadata
from buffer_delta.contracts import Failure
from buffer_delta.dead_letters import BYTES_MAX, DEAD, DEAD_TYPE, WHOLE_BATCH, unused_name
from buffer_delta.formats import Format
from buffer_delta.formats.base import Indices, Parsed, as_binary, chunks
from buffer_delta.formats.schemas import merge_schemas, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_BYTES = 8 << 20  # parsed at once: a large batch never needs its rows in memory all together
ROWS_PER_ARROW_BATCH = 64 * 1024  # what travels from a Python worker to the JVM at once
FETCH_AHEAD = 2  # batches a task holds besides the one it parses

Groups = Sequence[Sequence[BatchDescriptor]]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The names of the provenance columns; None leaves one out."""

    sequence: str | None = "_sequence"
    index: str | None = "_index"
    ingested_at: str | None = "_ingested_at"
    metadata: str | None = "_metadata"

    @classmethod
    def renamed(cls, columns: Mapping[str, str | None]) -> Self:
        """From `{"_sequence": "seq", "_metadata": None}`, which `LoaderConfig` has checked."""
        return cls(**{name.removeprefix("_"): new for name, new in columns.items()})

    def arrow_fields(self) -> list[pa.Field]:
        wanted = (
            (self.sequence, pa.int64()),
            (self.index, pa.int32()),
            (self.ingested_at, pa.timestamp("us", tz="UTC")),
            (self.metadata, pa.binary()),
        )
        return [pa.field(name, kind) for name, kind in wanted if name is not None]


def decode(
    spark: SparkSession,
    handle: FetchHandle,
    groups: Groups,
    fmt: Format,
    layout: RowLayout,
    *,
    split: bool = False,
    quarantined: Mapping[int, str] | None = None,
) -> DataFrame:
    """The rows of the batches, lazily. With `split`, see `dead_letters`; without, bad records are rescued whole."""
    task = _Decode(handle, groups, fmt, layout, split, dict(quarantined or {}))
    return _run(spark, task, task.schema())


def discover(
    spark: SparkSession, handle: FetchHandle, groups: Groups, fmt: Format, quarantined: Mapping[int, str]
) -> list[pa.Schema]:
    """The columns that the batches need, one schema for each task."""
    frame = _run(spark, _Discover(handle, groups, fmt, dict(quarantined)), pa.schema([("schema", pa.binary())]))
    return [pa.ipc.read_schema(pa.py_buffer(bytes(row.schema))) for row in frame.collect()]


def probe(spark: SparkSession, handle: FetchHandle, groups: Groups, must_parse: Format | None = None) -> list[Failure]:
    """Fetch and decode every batch; report those that fail, and whose fault it is.

    With `must_parse`, a batch with a bad entry fails too: for formats that have nowhere to put one.
    """
    names = ("sequence", "location", "error", "kind")
    schema = pa.schema([("sequence", pa.int64()), *((name, pa.string()) for name in names[1:])])
    frame = _run(spark, _Probe(handle, groups, must_parse), schema)
    return [Failure(*(row[name] for name in names)) for row in frame.collect()]


def _run(spark: SparkSession, task: Any, schema: pa.Schema) -> DataFrame:
    count = len(task.groups)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(task, spark_schema(schema))


class _Task:
    """What a Python worker runs: pickled with its groups, called with the ids of those it should do."""

    def __init__(self, handle: FetchHandle, groups: Groups) -> None:
        self.handle = handle
        self.groups = groups

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.do(self.groups[number])

    def do(self, group: Sequence[BatchDescriptor]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class _Decode(_Task):
    def __init__(
        self,
        handle: FetchHandle,
        groups: Groups,
        fmt: Format,
        layout: RowLayout,
        split: bool,
        quarantined: dict[int, str],
    ) -> None:
        super().__init__(handle, groups)
        self.fmt = fmt
        self.layout = layout
        self.split = split
        self.quarantined = quarantined

    def schema(self) -> pa.Schema:
        """The format's columns, then provenance, then the mark of dead letters. Raises InvalidConfig if two clash."""
        schema = pa.schema([*self.fmt.schema, *self.layout.arrow_fields()])
        names = [name.lower() for name in schema.names]  # Delta does not tell cases apart
        twice = next((name for name in schema.names if names.count(name.lower()) > 1), None)
        if twice is not None:
            raise InvalidConfig(
                f"{twice!r} is a column of the data and one that the loader adds; rename the latter with columns=…",
                key="columns",
                value=twice,
            )
        return schema.append(pa.field(unused_name(DEAD, schema.names), DEAD_TYPE)) if self.split else schema

    def do(self, group: Sequence[BatchDescriptor]) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        for descriptor, entries in _fetched(self.handle, group, self.quarantined):
            if entries is None:
                if self.split:  # else an operator gave the batch up, and there is no table to keep its bytes in
                    yield from self._dead_batch(descriptor, schema).to_batches()
                continue
            numbered = 0
            for start, chunk in chunks(as_binary(entries), CHUNK_BYTES, ROWS_PER_ARROW_BATCH):
                parsed = self.fmt.parse(chunk)
                good, bad = self._numbers(parsed, start, numbered)
                numbered += len(good) + len(bad)
                yield from self._with_provenance(parsed, start, good, descriptor, schema).to_batches(
                    max_chunksize=ROWS_PER_ARROW_BATCH
                )
                if parsed.bad:
                    yield from self._bad(parsed, start, bad, descriptor, chunk, schema).to_batches()

    def _numbers(self, parsed: Parsed, start: int, numbered: int) -> tuple[Indices, Indices]:
        """The `_index` of each row, and of each bad entry: no two in a batch are the same.

        It is the entry's own index in the batch. Where an entry may give several rows, rows are numbered through the
        batch instead, and an entry that is bad takes one number.
        """
        good = np.arange(parsed.rows.num_rows) if parsed.entries is None else parsed.entries
        bad = np.array([index for index, _ in parsed.bad], np.int64)
        if not self.fmt.many_rows:
            return good + start, bad + start
        numbers = np.empty(len(good) + len(bad), np.int64)
        numbers[np.argsort(np.concatenate([good, bad]), kind="stable")] = np.arange(numbered, numbered + len(numbers))
        return numbers[: len(good)], numbers[len(good) :]

    def _with_provenance(
        self, parsed: Parsed, start: int, index: Indices, descriptor: BatchDescriptor, schema: pa.Schema
    ) -> pa.Table:
        rows = parsed.rows.num_rows
        entries = (np.arange(rows) if parsed.entries is None else parsed.entries) + start
        columns = [*parsed.rows.columns, *self._provenance(descriptor, entries, index)]
        if self.split:
            columns.append(pa.nulls(rows, DEAD_TYPE))
        return pa.Table.from_arrays(columns, schema=schema)

    def _provenance(self, descriptor: BatchDescriptor, entries: Indices, index: Indices) -> list[pa.Array]:
        times, payloads = ranges_of(descriptor.metadata, entries)
        made = {
            self.layout.sequence: lambda: pa.array(np.full(len(index), descriptor.sequence, np.int64)),
            self.layout.index: lambda: pa.array(index.astype(np.int32)),
            self.layout.ingested_at: lambda: times,
            self.layout.metadata: lambda: payloads,
        }
        return [made[field.name]() for field in self.layout.arrow_fields()]

    def _bad(
        self,
        parsed: Parsed,
        start: int,
        index: Indices,
        descriptor: BatchDescriptor,
        chunk: pa.BinaryArray,
        schema: pa.Schema,
    ) -> pa.Table:
        numbers = np.array([number for number, _ in parsed.bad], np.int64)
        payloads = chunk.take(pa.array(numbers))
        if self.split:
            errors = pa.array([error for _, error in parsed.bad], pa.string())
            return self._dead(descriptor, numbers + start, index, errors, payloads, schema)
        rescued = self.fmt.rescued_column
        if rescued is None:
            number, error = parsed.bad[0]
            raise CorruptBatch(
                f"entry {start + number} of batch {descriptor.sequence} is bad ({error}), and {self.fmt!r} has no "
                "column to rescue it in: configure dead_letters",
                location=descriptor.location,
            )
        texts = pa.array([_text(payload.as_py()) for payload in payloads], pa.string())
        columns = {field.name: pa.nulls(len(index), field.type) for field in schema}
        columns[rescued] = texts
        provenance = self._provenance(descriptor, numbers + start, index)
        columns |= {field.name: made for field, made in zip(self.layout.arrow_fields(), provenance, strict=True)}
        return pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema)

    def _dead_batch(self, descriptor: BatchDescriptor, schema: pa.Schema) -> pa.Table:
        error = self.quarantined[descriptor.sequence]
        try:
            data = self.handle.fetch_raw(descriptor).data
        except ObjectNotFound:
            data = None
        if data is not None and len(data) > BYTES_MAX:
            error += f"; here are the first {BYTES_MAX:,} of its {len(data):,} bytes"
            data = data[:BYTES_MAX]
        return self._dead(
            descriptor,
            np.zeros(1, np.int64),
            np.array([WHOLE_BATCH], np.int64),
            pa.array([error], pa.string()),
            pa.array([data], pa.binary()),
            schema,
        )

    def _dead(
        self,
        descriptor: BatchDescriptor,
        entries: Indices,
        index: Indices,
        errors: pa.Array,
        payloads: pa.Array,
        schema: pa.Schema,
    ) -> pa.Table:
        rows = len(index)
        times, _ = ranges_of(descriptor.metadata, entries)
        dead = pa.StructArray.from_arrays(
            [
                pa.array(np.full(rows, descriptor.sequence, np.int64)),
                pa.array(index.astype(np.int32)),
                times,
                pa.array([descriptor.location] * rows, pa.string()),
                errors,
                payloads,
            ],
            fields=list(DEAD_TYPE),
        )
        columns = [pa.nulls(rows, field.type) for field in schema][:-1]
        return pa.Table.from_arrays([*columns, dead], schema=schema)


class _Discover(_Task):
    def __init__(self, handle: FetchHandle, groups: Groups, fmt: Format, quarantined: dict[int, str]) -> None:
        super().__init__(handle, groups)
        self.fmt = fmt
        self.quarantined = quarantined

    def do(self, group: Sequence[BatchDescriptor]) -> Iterator[pa.RecordBatch]:
        fetched = _fetched(self.handle, group, self.quarantined)
        found = [self.fmt.discover(entries) for _, entries in fetched if entries is not None]
        schema = merge_schemas(None, found, max_columns=self.fmt.max_columns)
        yield pa.RecordBatch.from_pydict({"schema": [schema.serialize().to_pybytes()]})


class _Probe(_Task):
    def __init__(self, handle: FetchHandle, groups: Groups, must_parse: Format | None) -> None:
        super().__init__(handle, groups)
        self.must_parse = must_parse

    def do(self, group: Sequence[BatchDescriptor]) -> Iterator[pa.RecordBatch]:
        for descriptor in group:
            try:
                entries = self.handle.fetch_arrow(descriptor)
                bad = self.must_parse.parse(entries).bad if self.must_parse else []
                if bad:
                    raise CorruptBatch(f"entry {bad[0][0]} is bad: {bad[0][1]}; configure dead_letters for it")
            except CorruptBatch as error:
                kind, what = "data", str(error)
            except ObjectNotFound as error:
                kind, what = "missing", str(error)
            except BufferQueueError as error:
                kind, what = "infra", str(error)
            else:
                continue
            facts = {"sequence": [descriptor.sequence], "location": [descriptor.location]}
            yield pa.RecordBatch.from_pydict(facts | {"error": [what], "kind": [kind]})


def _fetched(
    handle: FetchHandle, group: Sequence[BatchDescriptor], quarantined: Mapping[int, str]
) -> Iterator[tuple[BatchDescriptor, pa.Array | None]]:
    """Each batch of the group with its entries, None for a quarantined one; fetched ahead, in order."""

    def fetch(descriptor: BatchDescriptor) -> pa.Array | None:
        return None if descriptor.sequence in quarantined else handle.fetch_arrow(descriptor)

    with ThreadPoolExecutor(FETCH_AHEAD) as pool:
        ahead = []
        for descriptor in group:
            ahead.append((descriptor, pool.submit(fetch, descriptor)))
            if len(ahead) > FETCH_AHEAD:
                first, entries = ahead.pop(0)
                yield first, entries.result()
        for descriptor, entries in ahead:
            yield descriptor, entries.result()


def ranges_of(metadata: Sequence[Metadata], entries: Indices) -> tuple[pa.Array, pa.Array]:
    """The ingestion time and the metadata payload of each entry, by the ranges of the batch's items.

    Of several items that start at one index the last counts, so an empty range covers nothing. Items out of
    order, which only a foreign writer makes, start where the one before them does. Entries before the first item
    have neither.
    """
    if not metadata:
        return pa.nulls(len(entries), pa.timestamp("us", tz="UTC")), pa.nulls(len(entries), pa.binary())
    starts = np.maximum.accumulate(np.array([item.start_index for item in metadata], np.int64))
    item_of = np.searchsorted(starts, entries, side="right") - 1
    which = pa.array(item_of, mask=item_of < 0)
    times = pa.array([_clamped(item.ingestion_time_ms) for item in metadata], pa.int64())
    times = pc.multiply(times, 1000).cast(pa.timestamp("us", tz="UTC"))
    payloads = pa.array([item.payload for item in metadata], pa.binary())
    return times.take(which), payloads.take(which)


def _clamped(time_ms: int) -> int:
    """A time that Spark can hold: any 64-bit number may stand in a manifest."""
    limit = (2**63 - 1) // 1000
    return max(-limit, min(limit, time_ms))


def _text(payload: bytes) -> str:
    """A payload for a text column, without loss where it is text."""
    return payload.decode("utf-8", errors="backslashreplace")
