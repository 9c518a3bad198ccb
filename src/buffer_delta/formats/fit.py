"""Records whose types their own schemas tell, into the columns of a table. Shared by `avro` and `protobuf`.

Without given columns these are the fields of all record types together, which must agree. With given ones a value goes
in only if its column holds it exactly (see `exact`); a field that no column is for is refused before anything is read,
or left out if that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.formats.entries import Indices
from buffer_delta.formats.exact import NotExact, cast_exactly
from buffer_delta.formats.schemas import arrow_schema, holds, nullable


class Fit:
    """The columns, and how records get into them. Pickles."""

    def __init__(self, kinds: Sequence[pa.StructType], given: pa.Schema | None, *, ignore: bool) -> None:
        """Raises InvalidConfig where the record types `kinds` and the columns do not go together."""
        if given is None:
            self.schema = _all_columns(kinds)
            self._required: list[str] = []
            return
        for kind in kinds:
            _check_places(kind, given, ignore=ignore)
        self.schema = nullable(given)
        self._required = [field.name for field in given if not field.nullable]

    def fitted(self, table: pa.Table, rows: Indices) -> tuple[pa.Table, Indices, list[tuple[int, str]]]:
        """The records that fit, in these columns; the rows they are from; and what is wrong with the others."""
        if table.schema.equals(self.schema) and not self._required:
            return table, rows, []
        done, kept, bad, todo = [], [], [], [(table, rows)]
        while todo:  # halved until what does not fit is found
            part, at = todo.pop()
            try:
                done.append(self._cast(part))
                kept.append(at)
            except (NotExact, pa.ArrowException) as error:
                half = len(at) // 2
                if half:
                    todo += [(part.slice(half), at[half:]), (part.slice(0, half), at[:half])]
                else:
                    bad.append((int(at[0]), str(error)))
        found = pa.concat_tables(done) if done else self.schema.empty_table()
        return found, np.concatenate(kept or [np.zeros(0, np.int64)]), bad

    def _cast(self, table: pa.Table) -> pa.Table:
        arrays = []
        for field in self.schema:
            if field.name not in table.column_names:
                column = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
            else:
                try:
                    column = cast_exactly(table[field.name], field.type)
                except NotExact as error:
                    raise NotExact(f"the column {field.name!r}: {error}") from error
            if column.null_count and field.name in self._required:
                raise NotExact(f"no value for the column {field.name!r}, which is NOT NULL")
            arrays.append(column)
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _all_columns(kinds: Iterable[pa.StructType]) -> pa.Schema:
    """The columns of several records: those of the first, and what the others have besides."""
    columns: dict[str, pa.DataType] = {}
    for kind in kinds:
        for field in kind:
            if columns.setdefault(field.name, field.type) != field.type:
                raise InvalidConfig(
                    f"the field {field.name!r} is {columns[field.name]} in one of the schemas and {field.type} in "
                    "another: say with schema='…' which columns there should be",
                    key="schema",
                    value=field.name,
                )
    return nullable(arrow_schema(pa.schema(list(columns.items()))))


def _check_places(kind: pa.StructType, given: pa.Schema, *, ignore: bool) -> None:
    for field in kind:
        if field.name not in given.names:
            if ignore:
                continue
            raise InvalidConfig(
                f"the schema has no column for the field {field.name!r} ({field.type}); add one, or pass "
                "unknown_fields='ignore'",
                key="schema",
                value=field.name,
            )
        if not holds(given.field(field.name).type, field.type):
            raise InvalidConfig(
                f"the column {field.name!r} has no place for some fields of {field.type}; add them",
                key="schema",
                value=field.name,
            )
        try:
            cast_exactly(pa.chunked_array([pa.array([], field.type)]), given.field(field.name).type)
        except (NotExact, pa.ArrowException) as error:  # of no value at all: every entry would be bad
            raise InvalidConfig(
                f"the column {field.name!r} can hold none of the field's values: {error}; give it a type that can",
                key="schema",
                value=field.name,
            ) from error
