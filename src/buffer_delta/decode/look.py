"""A look at a group without making its rows: which columns it needs, which batches and entries cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError, CorruptBatch, InvalidInput, ObjectNotFound
from buffer_delta.decode.failures import Failure
from buffer_delta.decode.fetching import Group, fetched
from buffer_delta.decode.large import reason, too_large
from buffer_delta.decode.rows import CHUNK_BYTES, ROWS_PER_ARROW_BATCH
from buffer_delta.formats.base import Format
from buffer_delta.formats.entries import Indices, as_binary, offsets_of
from buffer_delta.formats.merge import merge_schemas

Check: TypeAlias = Callable[[pa.BinaryArray], list[tuple[int, str]]]
"""Tells which of some entries are bad and have no place to go; raises whatever it likes for others. It pickles."""


def discover(handle: FetchHandle, group: Group, form: Format) -> pa.Schema:
    """The columns that the batches need. Raises what a fetch raises."""
    form = form.within(handle.max_batch_bytes)
    found = []
    for descriptor, entries in fetched(handle, group):
        if entries is not None:
            entries = as_binary(entries)
            places = _places(group, descriptor.sequence, len(entries))
            found.append(form.discover(entries if len(places) == len(entries) else entries.take(pa.array(places))))
    return merge_schemas(None, found, max_columns=form.max_columns)


def probe(handle: FetchHandle, group: Group, check: Check | None = None) -> Iterator[Failure]:
    """Fetch every batch and put its entries to the check; what fails, and whose fault it is.

    Batches and entries that are set aside are passed over.
    """
    for descriptor in group.descriptors:
        if descriptor.sequence in group.quarantined:
            continue
        sequence, location = descriptor.sequence, descriptor.location
        try:
            entries = as_binary(handle.fetch_arrow(descriptor))
        except (CorruptBatch, InvalidInput) as error:  # InvalidInput: a location that no store accepts
            yield Failure(sequence, location, str(error), "data")
        except ObjectNotFound as error:
            yield Failure(sequence, location, str(error), "missing")
        except BufferQueueError as error:
            yield Failure(sequence, location, str(error), "infra")
        else:
            places = _places(group, sequence, len(entries))
            for index, reason in failing(entries.take(pa.array(places)), check) if check else ():
                yield Failure(sequence, location, reason, "data", int(places[index]))


def count(handle: FetchHandle, group: Group) -> int:
    """How many entries the batches of a group have."""
    return sum(len(handle.fetch_arrow(descriptor)) for descriptor in group.descriptors)


def failing(entries: pa.BinaryArray, check: Check) -> Iterator[tuple[int, str]]:
    """The entries that a check does not let pass: those it names, and those it raises for, alone and twice.

    Whatever is raised: a format must not raise for what an entry holds, and yet one did. What it raises for no entry at
    all is not an entry's fault, and is raised here.
    """
    todo = [(0, len(entries))]
    while todo:
        first, last = todo.pop()
        try:
            bad = check(entries.slice(first, last - first))
        except Exception as error:  # noqa: BLE001  (see above)
            if last - first > 1:
                middle = (first + last) // 2
                todo += [(middle, last), (first, middle)]
            elif (again := _raised(check, entries.slice(first, 1))) is not None:
                check(entries.slice(0, 0))
                yield first, f"{type(again).__name__}: {again or error}"
        else:
            yield from ((first + index, error) for index, error in bad)


def _raised(check: Check, entries: pa.BinaryArray) -> Exception | None:
    try:
        check(entries)
    except Exception as error:  # noqa: BLE001  (as above)
        return error
    return None


def _places(group: Group, sequence: int, entries: int) -> Indices:
    """The entries of a batch that are to be read."""
    window = group.window(sequence, entries)
    return np.setdiff1d(np.arange(window.start, window.stop), group.aside(sequence, entries)[0])


@dataclass(frozen=True)
class CanDiscover:
    """Lets pass what an evolving format finds columns in, and what Arrow can tell another process of them."""

    format: Format

    def __call__(self, entries: pa.BinaryArray) -> list[tuple[int, str]]:
        found = self.format.discover(entries)
        pa.ipc.read_schema(pa.py_buffer(found.serialize()))
        _send(found.empty_table())
        return []


@dataclass(frozen=True)
class CanParse:
    """Lets pass what becomes rows that Arrow can send to another process."""

    format: Format
    has_place: bool
    """Bad entries go somewhere."""
    max_entry_bytes: int | None = None
    """Larger ones go nowhere; None: it does not matter here."""

    def __call__(self, entries: pa.BinaryArray) -> list[tuple[int, str]]:
        large = too_large(entries, self.max_entry_bytes)
        if len(large):
            assert self.max_entry_bytes is not None
            sizes = np.diff(offsets_of(entries))[large].tolist()
            found = [(at, reason(size, self.max_entry_bytes)) for at, size in zip(large.tolist(), sizes, strict=True)]
            kept = np.setdiff1d(np.arange(len(entries)), large)
            return sorted([*found, *((int(kept[at]), error) for at, error in self(entries.take(pa.array(kept))))])
        bad: list[tuple[int, str]] = []
        for start, piece in self.format.pieces(entries, CHUNK_BYTES, ROWS_PER_ARROW_BATCH):
            parsed = self.format.parse(piece)
            _send(parsed.rows)
            bad += [] if self.has_place else [(start + index, error) for index, error in parsed.bad]
        return bad


def _send(rows: pa.Table) -> None:
    """Raises what sending them to another process would: Arrow refuses deep nesting, also of columns without rows."""
    with pa.ipc.new_stream(pa.MockOutputStream(), rows.schema) as stream:
        stream.write_table(rows)
        stream.write_batch(pa.RecordBatch.from_pylist([], schema=rows.schema))
