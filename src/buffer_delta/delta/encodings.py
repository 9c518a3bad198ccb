"""How the columns of a Parquet file are written: which get a dictionary, which statistics. Pure, no Spark.

A dictionary only where it pays.
Arrow tries a dictionary for every column and falls back when it has grown too large; until then it has hashed every
value for nothing. A look at the first rows tells most of it: a column whose values hardly repeat there gets none.

Statistics only where they tell Spark the truth. Arrow leaves NaN out of a column's bounds, and to Spark NaN is larger
than any number: it would skip a row group with a NaN in it where a query asks for more than the maximum. So floats
get none; what Delta's log says of the whole file (`stats.py`) knows NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS = 4096
DISTINCT_MAX = 0.25
"""Share of different values in the sample up to which a dictionary pays."""


def dictionary_columns(table: pa.Table) -> list[str]:
    """The Parquet paths of the columns to encode with a dictionary."""
    sample = table.slice(0, SAMPLE_ROWS)
    paths: list[str] = []
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        # Arrow's offsets of a slice's children lead into the whole batch: only as much is looked at as is needed.
        paths += [path for path, values in _leaves(name, column.combine_chunks()) if _repeats(values)]
    return paths


def statistics_columns(schema: pa.Schema) -> list[str]:
    """The Parquet paths of the columns to keep minimum and maximum of."""
    empty = schema.empty_table()
    leaves = [leaf for name in schema.names for leaf in _leaves(name, empty.column(name).combine_chunks())]
    # Arrow goes by the path alone, and the column `a.b` has that of the field b in a struct a.
    floats = {path for path, values in leaves if pa.types.is_floating(values.type)}
    return [path for path, _ in leaves if path not in floats]


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
