"""Batches into rows: the format's columns, then where each row came from, then what the policy adds.

A pure function of the batches' bytes and the configuration: every attempt at a group gives the same rows. A Spark
task calls it today; a partition of a data source, or a task that writes Parquet itself, can call it the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from buffer.consume.fetch import FetchHandle
from buffer.errors import InvalidConfig
from buffer.ledger.reasons import plain
from buffer.model import BatchDescriptor
from buffer_delta.decode.dead_letters import keep_batch
from buffer_delta.decode.fetching import Group, fetched
from buffer_delta.decode.large import reason, shortened, too_large
from buffer_delta.decode.layout import RowLayout
from buffer_delta.decode.policy import BadEntries, DeadLetter, Filled, GivenUp, OnBad
from buffer_delta.formats.base import Format, Parsed
from buffer_delta.formats.entries import Indices, as_binary, offsets_of
from buffer_delta.formats.names import same_name_key

CHUNK_BYTES = 8 << 20  # parsed at once: a large batch never needs its rows in memory all together
ROWS_PER_ARROW_BATCH = 64 * 1024  # what travels from a Python worker to the JVM at once


@dataclass(frozen=True)
class RowDecoder:
    """How batches become rows. Pickles: one travels to all tasks of a load."""

    format: Format
    layout: RowLayout
    on_bad: OnBad
    max_entry_bytes: int | None = None
    """A larger entry is a bad one, see `large`."""

    schema: pa.Schema = field(init=False, repr=False, compare=False)
    """Of all rows."""

    def __post_init__(self) -> None:
        """Raises InvalidConfig if a column of the data has the name of one that is added."""
        schema = pa.schema([*self.format.schema, *self.layout.arrow_fields(), *self.on_bad.fields])
        names = Counter(map(same_name_key, schema.names))
        twice = next((name for name in schema.names if names[same_name_key(name)] > 1), None)
        if twice is not None:
            raise InvalidConfig(
                f"{twice!r} is a column of the data and one that the loader adds; rename the latter with columns=…",
                key="columns",
                value=twice,
            )
        object.__setattr__(self, "schema", schema)

    def rows(self, handle: FetchHandle, group: Group) -> Iterator[pa.RecordBatch]:
        """The rows of a group, batch by batch, in record batches of bounded size.

        Raises what a fetch raises, and CorruptBatch where the policy has no place for a bad entry.
        """
        form = self.format.within(handle.max_batch_bytes)
        for descriptor, entries in fetched(handle, group):
            if entries is not None:
                yield from self._rows_of(form, descriptor, as_binary(entries), group, handle)
                continue
            left = self.on_bad.given_up(GivenUp(descriptor, group.quarantined[descriptor.sequence], handle))
            if left is not None:
                yield self._with_nulls(left)

    def _rows_of(
        self, form: Format, descriptor: BatchDescriptor, entries: pa.BinaryArray, group: Group, handle: FetchHandle
    ) -> Iterator[pa.RecordBatch]:
        window = group.window(descriptor.sequence, len(entries))
        places, reasons = group.aside(descriptor.sequence, len(entries))
        numbered = 0
        for offset, chunk in form.pieces(entries[window], CHUNK_BYTES, ROWS_PER_ARROW_BATCH):
            start = window.start + offset
            here = slice(*np.searchsorted(places, [start, start + len(chunk)]))
            left_out = dict(zip((places[here] - start).tolist(), reasons[here], strict=True))
            parsed = _parsed(form, chunk, self._too_large(chunk, descriptor, handle) | left_out)
            good, bad = numbers(parsed, start, numbered, many_rows=form.many_rows)
            numbered += len(good) + len(bad)
            rows = self._with_provenance(parsed, start, good, descriptor)
            yield from rows.to_batches(max_chunksize=ROWS_PER_ARROW_BATCH)
            if not parsed.bad:
                continue
            found = np.array([place for place, _ in parsed.bad], np.int64)
            is_aside = np.isin(found + start, places[here])
            for chosen, policy in ((~is_aside, self.on_bad.bad), (is_aside, self.on_bad.set_aside)):
                # A reason may quote the record, and JSON's names may hold what no text column can.
                errors = [plain(error) for (_, error), wanted in zip(parsed.bad, chosen, strict=True) if wanted]
                if errors:
                    payloads = chunk.take(pa.array(found[chosen]))
                    large = next(iter(too_large(payloads, self.max_entry_bytes).tolist()), None)
                    payloads = shortened(payloads, self.max_entry_bytes)
                    places_here = found[chosen] + start
                    which = BadEntries(descriptor, places_here, bad[chosen], errors, payloads, self.layout, large)
                    left = policy(which)
                    if left is not None:
                        yield self._with_nulls(left)

    def _too_large(self, chunk: pa.BinaryArray, descriptor: BatchDescriptor, handle: FetchHandle) -> dict[int, str]:
        """The entries that are too large, and why. Where there are dead letters, their batch is kept first."""
        places = too_large(chunk, self.max_entry_bytes)
        if not len(places) or self.max_entry_bytes is None:
            return {}
        kept = keep_batch(handle.store, descriptor.location) if isinstance(self.on_bad, DeadLetter) else None
        sizes = np.diff(offsets_of(chunk))[places].tolist()
        return {int(at): reason(size, self.max_entry_bytes, kept) for at, size in zip(places, sizes, strict=True)}

    def _with_provenance(self, parsed: Parsed, start: int, index: Indices, descriptor: BatchDescriptor) -> pa.Table:
        rows = parsed.rows.num_rows
        entries = (np.arange(rows) if parsed.entries is None else parsed.entries) + start
        columns = [*parsed.rows.columns, *self.layout.arrays(descriptor, entries, index)]
        columns += [pa.nulls(rows, field.type) for field in self.on_bad.fields]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _with_nulls(self, filled: Filled) -> pa.RecordBatch:
        rows = len(next(iter(filled.values())))
        arrays = [filled[f.name] if f.name in filled else pa.nulls(rows, f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def numbers(parsed: Parsed, start: int, numbered: int, *, many_rows: bool) -> tuple[Indices, Indices]:
    """The `_index` of each row, and of each bad entry: no two in a batch are the same.

    It is the entry's own index in the batch. Where an entry may give several rows, rows are numbered through the
    batch instead, and an entry that is bad takes one number.
    """
    good = np.arange(parsed.rows.num_rows) if parsed.entries is None else parsed.entries
    bad = np.array([index for index, _ in parsed.bad], np.int64)
    if not many_rows:
        return good + start, bad + start
    found = np.empty(len(good) + len(bad), np.int64)
    found[np.argsort(np.concatenate([good, bad]), kind="stable")] = np.arange(numbered, numbered + len(found))
    return found[: len(good)], found[len(good) :]


def _parsed(form: Format, chunk: pa.BinaryArray, left_out: Mapping[int, str]) -> Parsed:
    """The chunk without the entries that are left out, which count as bad: parsing one may end the process."""
    if not left_out:
        return form.parse(chunk)
    kept = np.setdiff1d(np.arange(len(chunk)), list(left_out))
    parsed = form.parse(chunk.take(pa.array(kept)))
    sources = kept if parsed.entries is None else kept[parsed.entries]
    bad = [(int(kept[place]), error) for place, error in parsed.bad]
    return Parsed(parsed.rows, sources, sorted([*bad, *left_out.items()]))
