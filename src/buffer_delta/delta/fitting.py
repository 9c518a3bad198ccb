"""Rows made to fit a table's columns: nothing is changed but what a wider type holds exactly.

Arrow's own casts do more than that. They cut a time of day off, make infinity of a large double and drop fields of a
struct, so only those are asked for that cannot: see `widens`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from buffer_delta.delta.file_rules import FileRules, nullable_schema
from buffer_delta.errors import NullRefused, SchemaMismatch

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""How many digits the largest value has."""
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_SAME = {
    pa.string(): (pa.large_string(), pa.string_view()),
    pa.binary(): (pa.large_binary(), pa.binary_view()),
}
"""Types that differ in how Arrow lays them out, not in what they hold."""


def fitted(batch: pa.RecordBatch, rules: FileRules) -> pa.RecordBatch:
    """The batch with exactly the table's columns: in its order and types, null where the batch has none.

    Raises SchemaMismatch for a column that the table has not or that would lose something, and NullRefused.
    """
    unknown = [name for name in batch.schema.names if rules.schema.get_field_index(name) < 0]
    if unknown or len(set(batch.schema.names)) < len(batch.schema.names):
        raise _mismatch(unknown or batch.schema.names, "the table has no such column, or the rows have it twice")
    schema, columns = nullable_schema(rules.schema), []
    for wanted in schema:
        at = batch.schema.get_field_index(wanted.name)
        is_there = at >= 0
        columns.append(_as_type(batch.column(at), wanted) if is_there else pa.nulls(batch.num_rows, wanted.type))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    for path in rules.not_null:
        _refuse_nulls(rows, path, is_partition=path[0] in rules.partition_by)
    return rows


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type is one of the wanted type, or Arrow's cast says which is not."""
    types = pa.types
    if given == wanted or types.is_null(given) or given in _SAME.get(wanted, ()):
        return True
    for kinds in (_INTEGERS, _FLOATS):
        if given in kinds and wanted in kinds:
            return kinds.index(given) <= kinds.index(wanted)
    if given in _DIGITS and types.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= _DIGITS[given])
    if given in _DIGITS and wanted == pa.float64():
        return bool(given != pa.int64())  # which it would round beyond 2**53
    if types.is_decimal(given) and types.is_decimal(wanted):
        digits = given.precision - given.scale <= wanted.precision - wanted.scale
        return bool(digits and given.scale <= wanted.scale)
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return bool(given.tz) == bool(wanted.tz)  # a finer unit is cast only where nothing is cut off
    if types.is_dictionary(given):
        return widens(given.value_type, wanted)
    if types.is_struct(given) and types.is_struct(wanted):
        names = [field.name for field in given]
        known = len(set(names)) == len(names) and all(wanted.get_field_index(name) >= 0 for name in names)
        return known and all(widens(field.type, wanted.field(field.name).type) for field in given)
    if types.is_map(given) and types.is_map(wanted):
        return widens(given.key_type, wanted.key_type) and widens(given.item_type, wanted.item_type)
    is_list = types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
    return bool(is_list and types.is_list(wanted) and widens(given.value_type, wanted.value_type))


def _as_type(column: pa.Array, wanted: pa.Field) -> pa.Array:
    if column.type == wanted.type:
        return column
    if not widens(column.type, wanted.type):
        raise _mismatch([wanted.name], f"{wanted.type} does not hold every value of {column.type}")
    try:
        return column.cast(wanted.type)  # checked: what does not fit raises
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _mismatch([wanted.name], f"{column.type} to {wanted.type}: {error}") from error


def _mismatch(columns: Iterable[str], reason: str) -> SchemaMismatch:
    names = tuple(columns)
    return SchemaMismatch(f"the rows do not fit the table's columns {', '.join(names)}: {reason}", columns=names)


def _refuse_nulls(rows: pa.RecordBatch, path: tuple[str, ...], *, is_partition: bool) -> None:
    column: pa.Array = rows.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(name)])
    missing = column.null_count
    if is_partition and pa.types.is_string(column.type):
        missing += pc.sum(pc.equal(column, "")).as_py() or 0
    if missing:
        raise NullRefused(
            f"{missing:,} rows have no value in the column {'.'.join(path)!r}, which is NOT NULL: give them one, or "
            "drop the constraint",
            column=".".join(path),
            rows=missing,
        )
