"""What becomes of an entry, or a batch, that cannot be understood: a policy, chosen once for a load.

    Rescue       the entry's text, or its bytes in base64, is a row of its own, in the format's rescued column; a batch
                 given up leaves nothing
    DeadLetter   it is a row of the dead-letter table, which travels in a column of its own; so is a batch given up
    Fail         the range fails with what is wrong and the way out; a batch given up leaves nothing

A batch is given up when an operator or the rules have quarantined it: it is not decoded then. So is a single entry that
fails every time, in parsing or in a table: it is not parsed then, and without dead letters it leaves nothing.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from buffer.consume.fetch import FetchHandle
from buffer.errors import CorruptBatch, ObjectNotFound
from buffer.model import BatchDescriptor
from buffer_delta.decode.dead_letters import DEAD, DEAD_TYPE, dead_batch, dead_entries, unused_name
from buffer_delta.decode.layout import RowLayout
from buffer_delta.formats.base import Format
from buffer_delta.formats.entries import Indices

Filled: TypeAlias = Mapping[str, pa.Array]
"""Rows by their columns that are not null, all of one length, which is not 0."""


@dataclass(frozen=True, slots=True)
class BadEntries:
    """Entries of one batch that the format could not understand, or that are set aside; at least one."""

    descriptor: BatchDescriptor
    entries: Indices
    """Their place in the batch."""
    index: Indices
    """The `_index` of each, which no row of the batch has."""
    errors: Sequence[str]
    payloads: pa.BinaryArray
    layout: RowLayout
    too_large: int | None = None
    """Which of them, by place here, is the first that is too large for a row; of its payload the beginning is here."""

    def provenance(self) -> dict[str, pa.Array]:
        arrays = self.layout.arrays(self.descriptor, self.entries, self.index)
        return {field.name: made for field, made in zip(self.layout.arrow_fields(), arrays, strict=True)}


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A quarantined batch."""

    descriptor: BatchDescriptor
    error: str
    handle: FetchHandle

    def stored(self) -> bytes | None:
        """The object as it is stored. None: it is gone, not the queue's, or too large to be read at all."""
        try:
            return self.handle.fetch_raw(self.descriptor).data
        except (ObjectNotFound, CorruptBatch):
            return None


class OnBad(ABC):
    """One policy. Pickles: it travels to where the rows are made."""

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that it adds, after all others. Null in good rows."""
        return []

    @abstractmethod
    def bad(self, bad: BadEntries, /) -> Filled:
        """A row for each bad entry. Raises CorruptBatch where there is no place for them."""

    def given_up(self, _batch: GivenUp, /) -> Filled | None:
        """The rows that a quarantined batch leaves, if any."""
        return None

    def set_aside(self, _entries: BadEntries, /) -> Filled | None:
        """The rows that entries leave which are set aside, if any."""
        return None


@dataclass(frozen=True)
class Rescue(OnBad):
    column: str

    def bad(self, bad: BadEntries, /) -> Filled:
        """Raises CorruptBatch for an entry that is too large for any row."""
        if bad.too_large is not None:
            raise CorruptBatch(
                f"entry {bad.entries[bad.too_large]} of batch {bad.descriptor.sequence} is too large for a row: "
                f"{bad.errors[bad.too_large]}; configure dead_letters, or raise max_entry_bytes",
                location=bad.descriptor.location,
            )
        texts = [_text(payload.as_py()) for payload in bad.payloads]
        return {self.column: pa.array(texts, pa.string()), **bad.provenance()}


@dataclass(frozen=True)
class DeadLetter(OnBad):
    mark: str = DEAD
    """The column that holds dead letters while they travel with good rows."""

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self.mark, DEAD_TYPE)]

    def bad(self, bad: BadEntries, /) -> Filled:
        return {self.mark: dead_entries(bad.descriptor, bad.entries, bad.index, bad.errors, bad.payloads)}

    def given_up(self, batch: GivenUp, /) -> Filled | None:
        return {self.mark: dead_batch(batch.descriptor, batch.error, batch.stored())}

    def set_aside(self, entries: BadEntries, /) -> Filled | None:
        return self.bad(entries)


@dataclass(frozen=True)
class Fail(OnBad):
    format: Format

    def bad(self, bad: BadEntries, /) -> Filled:
        raise CorruptBatch(
            f"entry {bad.entries[0]} of batch {bad.descriptor.sequence} is bad ({bad.errors[0]}), and "
            f"{self.format!r} has no column to rescue it in: configure dead_letters",
            location=bad.descriptor.location,
        )


def policy_for(form: Format, layout: RowLayout, *, dead_letters: bool) -> OnBad:
    """Dead letters where there is a table for them; else the format's rescued column; else it can only fail."""
    if dead_letters:
        return DeadLetter(unused_name(DEAD, [*form.schema.names, *(field.name for field in layout.arrow_fields())]))
    return Rescue(form.rescued_column) if form.rescued_column is not None else Fail(form)


def _text(payload: bytes) -> str:
    """A payload for a text column; what is no text as formats rescue bytes, from which they can be had again."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return json.dumps({"entry": base64.b64encode(payload).decode()})
