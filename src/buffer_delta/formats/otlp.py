"""The format `otlp`: each entry an export request of OpenTelemetry in its binary encoding. Needs the extra `[otlp]`.

    OtlpFormat("logs")      a row is a log record; "metrics": a metric with its data points; "traces": a span

A row has the record's own fields, as the format `protobuf` makes columns of them, and before them `resource`,
`resource_schema_url`, `scope` and `scope_schema_url`. A value of an attribute or a body is a STRUCT with a field for
each kind of value, all null but one; arrays and lists of pairs inside are JSON text, as Protocol Buffers define it.
Times are what they are in the request, nanoseconds since 1970.

An entry with a field that the library does not know, or a number that an enum has no name for, is kept whole in
`_rescued_data`, as `{"entry": "<base64>"}`, in the first of its rows. **An entry of another signal is bad**: what
one of the two others can read without a rest, and this one cannot, is theirs. (OpenData's Go producer says the signal
in an entry's metadata, `[1, signal, 1, 0]`, where 1 is metrics and 2 logs: a transform finds it in `_entry_metadata`.)

Memory: every row has a copy of its resource and scope, so what an entry may expand to by that is bounded as for `arrow`
(see `ipc.allowed`), never more than `max_batch_bytes`, and its records count for the cells that they take. Pieces are
weighed by that, too: an entry is read once more for it, without its records.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.base import RESCUED, Format, Parsed, brief
from buffer_delta.formats.cells import (
    BYTES_PER_CELL,
    all_allowed_cells,
    all_element_cells,
    allowed_cells,
    element_cells,
    leaves,
    row_cells,
)
from buffer_delta.formats.entries import Indices, as_binary, chunks, offsets_of
from buffer_delta.formats.ipc import allowed
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.protobuf.descriptors import DecodeError, UnknownFieldSet
from buffer_delta.formats.protobuf.read import Notes, Reader
from buffer_delta.formats.protobuf.wire import check_numbers
from buffer_delta.formats.schemas import arrow_schema, nullable, schema_text

try:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
except ImportError as error:
    raise InvalidConfig(
        "the format 'otlp' needs a library that is not installed: pip install 'buffer-delta[otlp]'", key="format"
    ) from error

REQUESTS: dict[str, Any] = {
    "logs": ExportLogsServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
}
PIECE_BYTES = 1 << 20  # of entries as Python objects at once
PIECE_ENTRIES = 1 << 12
MAX_BYTES = 1 << 30  # that an entry may expand to, whatever its size, unless `within` says otherwise
_RECURSIVE = frozenset({"opentelemetry.proto.common.v1.ArrayValue", "opentelemetry.proto.common.v1.KeyValueList"})
_UNREADABLE = (DecodeError, UnicodeDecodeError, ValueError, pa.ArrowException)


@dataclass(frozen=True, kw_only=True)
class OtlpOptions(FormatOptions):
    signal: str = ""
    """`logs`, `metrics` or `traces`. It must be given."""
    rescued_data: str = RESCUED
    """The name of that column."""

    def __post_init__(self) -> None:
        if self.signal not in REQUESTS:
            raise reject("signal", self.signal, "'logs', 'metrics' or 'traces'")
        if not isinstance(self.rescued_data, str) or not self.rescued_data:
            raise reject("rescued_data", self.rescued_data, "the name of a column")


class OtlpFormat(Format):
    name: ClassVar[str] = "otlp"
    many_rows: ClassVar[bool] = True
    Options: ClassVar[type[FormatOptions]] = OtlpOptions
    options: OtlpOptions

    def __init__(self, signal: str = "", **options: Any) -> None:
        super().__init__(signal=signal, **options)
        if self.options.rescued_data in _readers(signal).schema.names:
            raise reject("rescued_data", self.options.rescued_data, "a name that no other column has")
        self._max_bytes = MAX_BYTES

    def within(self, max_bytes: int) -> OtlpFormat:
        limited = copy.copy(self)
        limited._max_bytes = max_bytes
        return limited

    def pieces(self, entries: pa.BinaryArray, max_bytes: int, max_rows: int) -> Iterator[tuple[int, pa.BinaryArray]]:
        readers, most = _readers(self.options.signal), self._max_bytes
        extra = np.array([readers.weight(payload.as_py(), most) for payload in entries], np.int64)
        sizes = np.diff(offsets_of(entries)).astype(np.int64)
        extra += all_element_cells(sizes, readers.element) * BYTES_PER_CELL
        return chunks(entries, max_bytes, max_rows, extra)

    @property
    def schema(self) -> pa.Schema:
        columns = _readers(self.options.signal).schema
        return pa.schema([*columns, pa.field(self.options.rescued_data, pa.string())])

    def settings(self) -> dict[str, Any]:
        return {"signal": self.options.signal, "schema": schema_text(self.schema)}

    def parse(self, entries: pa.Array) -> Parsed:
        tables: list[pa.Table] = []
        sources: list[Indices] = []
        bad: list[tuple[int, str]] = []
        for start, piece in chunks(as_binary(entries), PIECE_BYTES, PIECE_ENTRIES):
            self._piece(start, piece.to_pylist(), np.diff(offsets_of(piece)).astype(np.int64), (tables, sources, bad))
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        at = np.concatenate(sources or [np.zeros(0, np.int64)])
        return Parsed(rows, at, sorted((entry, brief(error)) for entry, error in bad))

    def _piece(
        self,
        start: int,
        payloads: list[bytes],
        sizes: Indices,
        found: tuple[list[pa.Table], list[Indices], list[tuple[int, str]]],
    ) -> None:
        """The rows of some entries; one by one where something is wrong with them all together."""
        tables, sources, bad = found
        problem = None
        try:
            table, rows, notes = self._rows(payloads, sizes)
            if notes.crowded:
                problem = "it would take too much room for its size"
        except _UNREADABLE as error:
            problem = f"no request of {self.options.signal}: {error}"
        if problem is not None and len(payloads) == 1:
            bad.append((start, problem))
        elif problem is not None:
            half = len(payloads) // 2
            self._piece(start, payloads[:half], sizes[:half], found)
            self._piece(start + half, payloads[half:], sizes[half:], found)
        else:
            texts: list[str | None] = [None] * table.num_rows
            kept = np.ones(table.num_rows, bool)
            for entry in sorted(notes.strays):
                first = int(np.searchsorted(rows, entry))
                has_rows = first < len(rows) and rows[first] == entry
                if (problem := self._problem(payloads[entry], has_rows)) is not None:
                    bad.append((start + entry, problem))
                    kept[rows == entry] = False
                else:
                    texts[first] = json.dumps({"entry": base64.b64encode(payloads[entry]).decode()})
            table = table.append_column(self.options.rescued_data, pa.array(texts, pa.string()))
            tables.append(table if kept.all() else table.filter(pa.array(kept)))
            sources.append(rows[kept] + start)

    def _problem(self, payload: bytes, has_rows: bool) -> str | None:
        """Why an entry in which something is not known is a bad one; None: its first row can hold it."""
        for other in REQUESTS:
            if other != self.options.signal and _reads_whole(other, payload):
                return f"these are {other}, not {self.options.signal}"
        return None if has_rows else f"it has no {self.options.signal}, but fields that are not known"

    def _rows(self, payloads: list[bytes], sizes: Indices) -> tuple[pa.Table, Indices, Notes]:
        requests = [REQUESTS[self.options.signal].FromString(payload) for payload in payloads]
        for payload, request in zip(payloads, requests, strict=True):
            check_numbers(payload, request)
        return _readers(self.options.signal).table(requests, sizes, self._max_bytes)


class _Readers:
    """Of one signal."""

    def __init__(self, signal: str) -> None:
        self._request = REQUESTS[signal]
        request = self._request.DESCRIPTOR
        (self._resources,) = request.fields
        around = self._resources.message_type
        self._scopes = next(f for f in around.fields if f.is_repeated)
        inside = self._scopes.message_type
        self._records = next(f for f in inside.fields if f.is_repeated)
        self._resource = Reader(around.fields_by_name["resource"].message_type, texts=_RECURSIVE)
        self._scope = Reader(inside.fields_by_name["scope"].message_type, texts=_RECURSIVE)
        self._record = Reader(self._records.message_type, texts=_RECURSIVE)
        columns = [
            *(pa.field("resource", self._resource.kind), pa.field("resource_schema_url", pa.string())),
            *(pa.field("scope", self._scope.kind), pa.field("scope_schema_url", pa.string())),
            *self._record.kind,
        ]
        self.schema = nullable(arrow_schema(pa.schema(columns)))
        self.element = max(element_cells(field.type) for field in columns)

    def weight(self, payload: bytes, max_bytes: int) -> int:
        """Bytes that an entry's rows count for besides its own: copies and cells. 0: it is bad, and has no rows."""
        try:
            request = self._request.FromString(payload)
        except _UNREADABLE:
            return 0
        rows = copied = 0
        for resource in getattr(request, self._resources.name):
            around = resource.resource.ByteSize()
            for scope in getattr(resource, self._scopes.name):
                found = len(getattr(scope, self._records.name))
                rows += found
                copied += found * (around + scope.scope.ByteSize())
        if copied > allowed(len(payload), max_bytes) or rows * leaves(self._record.kind) > allowed_cells(len(payload)):
            return 0
        return copied + rows * row_cells(self.schema) * BYTES_PER_CELL

    def table(self, requests: Sequence[Any], sizes: Indices, max_bytes: int) -> tuple[pa.Table, Indices, Notes]:
        """The records of some requests, the request that each is from, and what was seen.

        There are none if one of them would take too much room.
        """
        notes = Notes(all_allowed_cells(sizes))
        resources, scopes, records = [], [], []
        of_resource, of_scope, of_record = [], [], []
        scope_at, record_at = [], []
        for entry, request in enumerate(requests):
            _note(request, entry, notes)
            for resource in getattr(request, self._resources.name):
                _note(resource, entry, notes)
                of_resource.append(entry)
                resources.append(resource)
                for scope in getattr(resource, self._scopes.name):
                    _note(scope, entry, notes)
                    of_scope.append(entry)
                    scopes.append(scope)
                    scope_at.append(len(resources) - 1)
                    found = getattr(scope, self._records.name)
                    records += found
                    of_record += [entry] * len(found)
                    record_at += [len(scopes) - 1] * len(found)
        rows = np.array(of_record, np.int64)
        whose_scope = np.array(record_at, np.int64)
        whose_resource = np.array(scope_at, np.int64)[whose_scope] if len(rows) else rows
        copied = np.zeros(len(requests), np.int64)
        np.add.at(copied, rows, _sizes(resources, "resource")[whose_resource] + _sizes(scopes, "scope")[whose_scope])
        np.subtract.at(notes.cells, rows, leaves(self._record.kind))
        most = np.array([allowed(size, max_bytes) for size in sizes.tolist()], np.int64)
        notes.crowded.update(np.flatnonzero((copied > most) | (notes.cells < 0)).tolist())
        if notes.crowded:
            return self.schema.empty_table(), rows[:0], notes
        arrays = [
            *self._both(resources, "resource", self._resource, np.array(of_resource, np.int64), whose_resource, notes),
            *self._both(scopes, "scope", self._scope, np.array(of_scope, np.int64), whose_scope, notes),
            *self._record.arrays(records, rows, notes),
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema), rows, notes

    def _both(
        self, holders: list[Any], name: str, reader: Reader, owners: Indices, whose: Indices, notes: Notes
    ) -> Iterator[pa.Array]:
        """The resource or scope of each record, and its schema's URL: each is read once, however many share it."""
        there = np.array([holder.HasField(name) for holder in holders], bool)
        read = reader.read([getattr(h, name) for h in holders if h.HasField(name)], owners[there], notes)
        places = np.where(there, np.cumsum(there) - 1, -1)[whose] if len(whose) else whose
        yield read.take(pa.array(places, mask=places < 0))
        yield pa.array([holder.schema_url for holder in holders], pa.string()).take(pa.array(whose))


def _sizes(holders: list[Any], name: str) -> Indices:
    return np.array([getattr(holder, name).ByteSize() for holder in holders], np.int64)


def _note(message: Any, entry: int, notes: Notes) -> None:
    if len(UnknownFieldSet(message)):
        notes.strays.add(entry)


def _reads_whole(signal: str, payload: bytes) -> bool:
    """Whether an entry is a request of that signal, with records, and nothing that is not known."""
    try:
        request = REQUESTS[signal].FromString(payload)
        table, _, notes = _readers(signal).table([request], np.array([len(payload)], np.int64), MAX_BYTES)
    except _UNREADABLE:
        return False
    return table.num_rows > 0 and not notes.strays


_MADE: dict[str, _Readers] = {}


def _readers(signal: str) -> _Readers:
    """Made once in each process: message types do not pickle."""
    if signal not in _MADE:
        _MADE[signal] = _Readers(signal)
    return _MADE[signal]
