"""Whether rows fit a table's columns, and how they are made to: numbers are widened, nothing else is changed.

A column is wider if it holds every value exactly. A table's own may have been changed to such by ALTER TABLE, while a
loader was at work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StructField,
    StructType,
)

from buffer_delta.errors import SchemaMismatch
from buffer_delta.formats.names import same_name_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WIDENINGS = ((ByteType, ShortType, IntegerType, LongType), (FloatType, DoubleType))
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
"""How many digits the largest value has."""


def fits(table: DataType, rows: DataType) -> bool:
    """Whether a column takes values of a type as they are. New fields in structs are another question."""
    if isinstance(table, StructType) and isinstance(rows, StructType):
        return all(fits(table[f.name].dataType, f.dataType) for f in rows.fields if f.name in table.names)
    if isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        return fits(table.elementType, rows.elementType)
    if isinstance(table, MapType) and isinstance(rows, MapType):
        return fits(table.keyType, rows.keyType) and fits(table.valueType, rows.valueType)
    for widening in _WIDENINGS:
        if isinstance(table, widening) and isinstance(rows, widening):
            return _rank(widening, rows) <= _rank(widening, table)
    if isinstance(table, DoubleType) and isinstance(rows, (ByteType, ShortType, IntegerType)):
        return True  # not a BIGINT: beyond 2**53 a double rounds
    if isinstance(table, DecimalType) and type(rows) in _DIGITS:
        return bool(table.precision - table.scale >= _DIGITS[type(rows)])
    if isinstance(table, DecimalType) and isinstance(rows, DecimalType):
        has_room = table.precision - table.scale >= rows.precision - rows.scale
        return bool(has_room and table.scale >= rows.scale)
    return bool(table == rows)


def unfit(table: StructType, rows: StructType) -> bool:
    """Whether a column of the rows has a type that the table's column of that name does not take."""
    wanted = _by_name(table)
    return any(not fits(wanted.get(same_name_key(field.name), field.dataType), field.dataType) for field in rows.fields)


def widened(rows: DataFrame, table: StructType) -> DataFrame:
    """The rows, with numbers widened to the table's own types: Delta would refuse an INT for a BIGINT."""
    wanted = _by_name(table)
    wider = {
        field.name: rows[quoted(field.name)].cast(wanted[same_name_key(field.name)])
        for field in rows.schema.fields
        if _is_wider(field, wanted)
    }
    return rows.withColumns(wider) if wider else rows


def fitted(rows: StructType, table: StructType) -> StructType:
    """The columns of rows whose numbers are widened to the table's own types, as `widened` does."""
    wanted = _by_name(table)
    return StructType(
        [
            StructField(field.name, wanted[same_name_key(field.name)] if _is_wider(field, wanted) else field.dataType)
            for field in rows.fields
        ]
    )


def mismatch(name: str, rows: StructType, table: StructType | None, *, merge_schema: bool) -> SchemaMismatch | None:
    """The error that names the columns which do not fit; None if all do."""
    known = {same_name_key(field.name): field for field in table.fields} if table else {}
    new = [f.name for f in rows.fields if same_name_key(f.name) not in known]
    changed = [
        f"{f.name} (table: {known[same_name_key(f.name)].dataType.simpleString()}, rows: {f.dataType.simpleString()})"
        for f in rows.fields
        if same_name_key(f.name) in known and not fits(known[same_name_key(f.name)].dataType, f.dataType)
    ]
    if not new and not changed:
        return None
    facts = [f"columns it has not: {', '.join(new)}"] if new else []
    facts += [f"columns of another type: {', '.join(changed)}"] if changed else []
    ways = ["pass merge_schema=True to add the new ones"] if new and not merge_schema else []
    ways += ["give the format a schema with the table's types, or load into another table"] if changed else []
    return SchemaMismatch(
        f"the rows do not fit the table {name!r}: {'; '.join(facts)}. To go on, {'; '.join(ways)}",
        table=name,
        columns=(*new, *(text.split(" ")[0] for text in changed)),
    )


def _is_wider(field: StructField, wanted: dict[str, DataType]) -> bool:
    """Whether the table's column takes the field's numbers, in a type of its own."""
    kind = wanted.get(same_name_key(field.name), field.dataType)
    return isinstance(field.dataType, NumericType) and kind != field.dataType and fits(kind, field.dataType)


def _by_name(table: StructType) -> dict[str, DataType]:
    return {same_name_key(field.name): field.dataType for field in table.fields}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _rank(kinds: tuple[type[DataType], ...], kind: DataType) -> int:
    return kinds.index(type(kind))
