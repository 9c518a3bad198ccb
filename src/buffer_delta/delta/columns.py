"""Whether rows fit a table's columns, and how they are made to: numbers are widened, nothing else is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WIDENINGS = ((ByteType, ShortType, IntegerType, LongType), (FloatType, DoubleType))


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
    return bool(table == rows)


def unfit(table: StructType, rows: StructType) -> bool:
    """Whether a column of the rows has a type that the table's column of that name does not take."""
    wanted = _by_name(table)
    return any(not fits(wanted.get(field.name.lower(), field.dataType), field.dataType) for field in rows.fields)


def widened(rows: DataFrame, table: StructType) -> DataFrame:
    """The rows, with numbers widened to the table's own types: Delta would refuse an INT for a BIGINT."""
    wanted = _by_name(table)
    wider = {
        field.name: rows[quoted(field.name)].cast(wanted[field.name.lower()])
        for field in rows.schema.fields
        if _is_wider(field, wanted)
    }
    return rows.withColumns(wider) if wider else rows


def fitted(rows: StructType, table: StructType) -> StructType:
    """The columns of rows whose numbers are widened to the table's own types, as `widened` does."""
    wanted = _by_name(table)
    return StructType(
        [
            StructField(field.name, wanted[field.name.lower()] if _is_wider(field, wanted) else field.dataType)
            for field in rows.fields
        ]
    )


def mismatch(name: str, rows: StructType, table: StructType | None, *, merge_schema: bool) -> SchemaMismatch | None:
    """The error that names the columns which do not fit; None if all do."""
    known = {field.name.lower(): field for field in table.fields} if table else {}
    new = [f.name for f in rows.fields if f.name.lower() not in known]
    changed = [
        f"{f.name} (table: {known[f.name.lower()].dataType.simpleString()}, rows: {f.dataType.simpleString()})"
        for f in rows.fields
        if f.name.lower() in known and not fits(known[f.name.lower()].dataType, f.dataType)
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
    kind = wanted.get(field.name.lower(), field.dataType)
    return isinstance(field.dataType, NumericType) and kind != field.dataType and fits(kind, field.dataType)


def _by_name(table: StructType) -> dict[str, DataType]:
    return {field.name.lower(): field.dataType for field in table.fields}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _rank(kinds: tuple[type[DataType], ...], kind: DataType) -> int:
    return kinds.index(type(kind))
