"""What a format is: a pure function from payload bytes to typed columns, with the bad payloads set aside.

Formats run on Spark executors, so they pickle. They know no queue, no Spark and no clock: the same bytes and the
same configuration give the same rows on every attempt, and exactly-once loading into several tables rests on that.
`digest()` names that configuration in the plan.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer_delta.formats.cells import BYTES_PER_CELL, all_element_cells, element_cells, row_cells, rows_per_piece
from buffer_delta.formats.entries import Indices, chunks, offsets_of
from buffer_delta.formats.options import FormatOptions

RESCUED = "_rescued_data"
"""The column for what does not fit the others, as JSON text."""

MAX_COLUMNS = 1000
"""Of a table whose columns follow the data, unless its format says otherwise."""


ERROR_MAX = 1000  # characters of what is wrong with an entry: it is written for people, and kept in a table


def brief(error: str) -> str:
    return error if len(error) <= ERROR_MAX else error[:ERROR_MAX] + "…"


@dataclass(frozen=True)
class Parsed:
    """The rows of some entries, and the entries that gave none."""

    rows: pa.Table
    """In the format's `schema`."""
    entries: Indices | None
    """The entry that each row came from, by index; None: row 0 is entry 0, and so on, none missing."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Entries that cannot be understood: index, and what is wrong with them."""


class Format(ABC):
    """How payload bytes become columns."""

    name: ClassVar[str]
    many_rows: ClassVar[bool] = False
    """Whether one entry may give several rows: then `_index` numbers the rows of a batch, not its entries."""
    has_variants: ClassVar[bool] = False
    """Whether it may fill a table's VARIANT columns."""
    needs_schema: ClassVar[bool] = False
    """Whether it cannot be made without its option `schema`."""
    rescues_all_new: ClassVar[bool] = False
    """Whether a record that would bring a column, or another type for one, has something in the rescued column when it
    is parsed without: then parsing alone tells whether there is anything to `discover`."""
    Options: ClassVar[type[FormatOptions]] = FormatOptions
    """What can be said about it."""

    def __init__(self, **options: Any) -> None:
        """Raises InvalidConfig that names the option which is wrong, and what is allowed."""
        self.options = self.Options.of(self.name, options)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows, without provenance. All of them nullable."""

    @abstractmethod
    def parse(self, entries: pa.Array) -> Parsed:
        """Rows for every entry that can be understood; never raises for what an entry holds."""

    def within(self, max_bytes: int) -> Format:
        """The same format, for which no single entry may expand to more than `max_bytes`."""
        del max_bytes  # most formats expand nothing
        return self

    @property
    def is_limited(self) -> bool:
        """Whether `within` decides which entries are bad."""
        return type(self).within is not Format.within

    def pieces(self, entries: pa.BinaryArray, max_bytes: int, max_rows: int) -> Iterator[tuple[int, pa.BinaryArray]]:
        """The entries in slices to parse one after the other, with the index of their first.

        A slice has no more than so many bytes and entries, and its rows no more than CELLS_PER_PIECE cells (see
        `cells`), what its arrays and maps may hold included, unless it is one entry.
        """
        schema = self.schema
        element = max((element_cells(field.type) for field in schema), default=0)
        cells = all_element_cells(np.diff(offsets_of(entries)).astype(np.int64), element)
        return chunks(entries, max_bytes, min(max_rows, rows_per_piece(row_cells(schema))), cells * BYTES_PER_CELL)

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that decides what `parse` does, as JSON values."""

    def digest(self) -> str:
        """A name for the configuration: equal where the same bytes give the same rows."""
        text = json.dumps({"type": self.name, **self.settings()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def variants(self) -> tuple[str, ...]:
        """The text columns of `schema` that are to be VARIANT in a table, see `variant`."""
        return ()

    @property
    def rescued_column(self) -> str | None:
        """The column of `schema` that can take a whole entry which cannot be understood, if there is one."""
        return None

    @property
    def evolving(self) -> bool:
        """Whether the columns follow the data: then `discover`, merge, and `with_schema` before `parse`."""
        return False

    @property
    def max_columns(self) -> int:
        """How many columns a table may get that follows the data, and how many fields inside of them."""
        return MAX_COLUMNS

    def discover(self, entries: pa.Array) -> pa.Schema:
        """The columns that these entries would need."""
        raise NotImplementedError(f"the format {self.name!r} has a fixed schema")

    def wider(self, known: pa.DataType, found: pa.DataType) -> pa.DataType | None:
        """The type that holds every value of a known column, unchanged, and what was found in it besides; None: there
        is none that a Delta table can change the column to, and what does not fit is rescued."""
        del known, found
        return None

    def with_schema(self, schema: pa.Schema) -> Format:
        """The same format with its columns settled."""
        raise NotImplementedError(f"the format {self.name!r} has a fixed schema")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.settings().items() if value is not None)
        return f"{type(self).__name__}({facts})"
