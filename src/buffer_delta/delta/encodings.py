"""How the columns of a Parquet file are written: which get a dictionary, which statistics. Pure, no Spark.

A dictionary only where it pays.
Arrow tries a dictionary for every column and falls back when it has grown too large; until then it has hashed every
value for nothing. A look at the first rows tells most of it: a column whose values hardly repeat there gets none.

Statistics only where they tell Spark the truth. Arrow leaves NaN out of a column's bounds, and to Spark NaN is larger
than any number: it would skip a row group with a NaN in it where a query asks for more than the maximum. So floats
get none; what Delta's log says of the whole file (`stats.py`) knows NaN.

Spark asks a dictionary, too, whether a row group can be skipped, and there it takes -0.0 for less than 0.0, which
everywhere else are equal to it: `x >= 0` would lose the rows with -0.0. So a column of floats that has one gets no
dictionary, and a file whose columns have one takes no rows with it (`Dictionaries.fit`).

Two columns of one path, `a.b` and the field b of a struct a, get neither: Spark asks one's of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS = 4096
DISTINCT_MAX = 0.25
"""Share of different values in the sample up to which a dictionary pays."""


@dataclass(frozen=True, slots=True)
class Dictionaries:
    """What is encoded with a dictionary in one file."""

    paths: tuple[str, ...]
    """The Parquet paths."""
    floats: tuple[str, ...]
    """The table's columns with floats among these."""

    @classmethod
    def of(cls, table: pa.Table) -> Dictionaries:
        """By the first rows of a file."""
        sample = table.slice(0, SAMPLE_ROWS)
        shared = _shared(table.schema)
        paths: list[str] = []
        floats: list[str] = []
        for name, column in zip(sample.column_names, sample.columns, strict=True):
            # Arrow's offsets of a slice's children lead into the whole batch: only as much is looked at as is needed.
            found = [leaf for leaf in _leaves(name, column.combine_chunks()) if _repeats(leaf[1])]
            if any(pa.types.is_floating(values.type) for _, values in found):
                negative = _negative_zeros(name, table.column(name))
                found = [leaf for leaf in found if leaf[0] not in negative]
                floats += [name] if any(pa.types.is_floating(values.type) for _, values in found) else []
            paths += [path for path, _ in found if path not in shared]
        return cls(tuple(paths), tuple(floats))

    def fit(self, rows: pa.RecordBatch) -> bool:
        """Whether more rows may be encoded with them."""
        return not any(_negative_zeros(name, rows.column(name)) & set(self.paths) for name in self.floats)


def statistics_columns(schema: pa.Schema) -> list[str]:
    """The Parquet paths of the columns to keep minimum and maximum of."""
    shared = _shared(schema)
    return [path for path, kind in _kinds(schema) if path not in shared and not pa.types.is_floating(kind)]


def _kinds(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    empty = schema.empty_table()
    leaves = [leaf for name in schema.names for leaf in _leaves(name, empty.column(name).combine_chunks())]
    return [(path, values.type) for path, values in leaves]


def _shared(schema: pa.Schema) -> set[str]:
    """The paths that several columns have: Arrow goes by the path alone, too."""
    return {path for path, count in Counter(path for path, _ in _kinds(schema)).items() if count > 1}


def _negative_zeros(name: str, column: pa.Array | pa.ChunkedArray) -> set[str]:
    """The paths of the floats in a column that are -0.0 somewhere."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return {
        path for path, leaf in _leaves(name, values) if pa.types.is_floating(leaf.type) and _has_negative_zero(leaf)
    }


def _has_negative_zero(values: pa.Array) -> bool:
    numbers = values.drop_null().to_numpy(zero_copy_only=False)
    return bool((np.signbit(numbers) & (numbers == 0)).any())


def _repeats(values: pa.Array) -> bool:
    values = values.drop_null()[:SAMPLE_ROWS]
    if not len(values) or pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        return False  # a boolean is a bit already
    return bool(pc.count_distinct(values).as_py() <= max(1, DISTINCT_MAX * len(values)))


def _leaves(path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    kind = values.type
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _leaves(f"{path}.{kind.field(at).name}", pc.struct_field(values, [at]))
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", values.flatten())
    elif pa.types.is_map(kind):
        # Only the sliced part: keys and items of an array are those of the whole batch it was cut from.
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        yield from _leaves(f"{path}.key_value.key", values.keys[start:end])
        yield from _leaves(f"{path}.key_value.value", values.items[start:end])
    else:
        yield path, values
