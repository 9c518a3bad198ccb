"""Schemas: what a user may give, how two of them merge, how Arrow's and Spark's meet.

Merging rules, for schemas that follow the data. A value that does not fit is never lost: it stays, as it came, in
the rescued column.

    a new field                       becomes a column
    int and double                    double
    struct and struct                 field by field; list and list: by element
    anything else, both new           string: every value has a text
    a known column, another type      stays as it is; values that do not fit it are rescued
    a name that Delta cannot store, that differs only in case, or that is taken: never a column, nor a struct's field
    more than `max_columns` columns, or more fields inside of structs: never there either
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from buffer.errors import InvalidConfig
from buffer_delta.formats.base import MAX_COLUMNS
from buffer_delta.formats.ddl import ALLOWED, DECIMAL_PRECISION_MAX, TIMESTAMP, parse_ddl

_UNSTORABLE = frozenset(" ,;{}()\n\t=")  # Delta refuses them in column names unless columns are mapped
_PLAIN = frozenset(
    (
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32()),
    )
)
_SPARK_PLAIN = (NumericType, StringType, BinaryType, BooleanType, DateType, TimestampType, TimestampNTZType)


def arrow_schema(given: Any) -> pa.Schema:
    """The Arrow schema of a DDL string, a StructType or an Arrow schema. Raises InvalidConfig."""
    if isinstance(given, str):
        schema = parse_ddl(given)
    elif isinstance(given, StructType):
        schema = pa.schema([pa.field(f.name, _from_spark(f), nullable=f.nullable) for f in given.fields])
    elif isinstance(given, pa.Schema):
        schema = given
    else:
        raise InvalidConfig(
            f"schema={given!r} is not allowed: it must be a DDL string ('id BIGINT, name STRING'), a StructType "
            "or an Arrow schema",
            key="schema",
            value=given,
        )
    fields = [pa.field(f.name, _normal(f.name, f.type), nullable=f.nullable) for f in schema]
    names = [f.name.lower() for f in fields]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not fields:
        raise InvalidConfig(
            f"the schema has {f'columns twice: {sorted(twice)}' if twice else 'no columns'}",
            key="schema",
            value=given,
        )
    return pa.schema(fields)


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark, all of them nullable."""
    return from_arrow_schema(nullable(schema))


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([f.with_nullable(True) for f in schema])


def schema_text(schema: pa.Schema) -> list[list[Any]]:
    """A stable form for digests: name, type, nullable."""
    return [[f.name, str(f.type), f.nullable] for f in schema]


def known_columns(table: StructType | None, taken: Collection[str]) -> tuple[pa.Schema, set[str]]:
    """A table's columns that a format may fill, and the names that it must leave alone."""
    fields, reserved = [], {name.lower() for name in taken}
    for field in table.fields if table else ():
        if field.name.lower() in reserved:
            continue
        try:
            fields.append(pa.field(field.name, _normal(field.name, _from_spark(field))))
        except InvalidConfig:  # a type we cannot write, added by somebody else: its name is taken all the same
            reserved.add(field.name.lower())
    return pa.schema(fields), reserved


def merge_schemas(
    known: pa.Schema | None,
    found: Iterable[pa.Schema],
    *,
    taken: Collection[str] = (),
    max_columns: int = MAX_COLUMNS,
) -> pa.Schema:
    """The known columns, unchanged but for new fields in their structs, and those found besides, in order.

    `taken` names are never added; nor are columns beyond `max_columns`, or fields of structs beyond as many again.
    """
    fields = {f.name.lower(): f for f in known} if known is not None else {}
    fresh: dict[str, pa.Field] = {}
    refused = {name.lower() for name in taken}
    room = Room(max_columns - len(fields))
    inside = Room(max_columns - sum(_fields_inside(f.type) for f in fields.values()))
    for schema in found:
        nested = _smallest_first(schema)
        hollow = [f.with_type(pa.null()) if pa.types.is_nested(f.type) else f for f in schema] if nested else schema
        for field in (*hollow, *nested):  # every column has its place before anything inside of them has
            name = field.name.lower()
            if name in fields:
                _add(fields, field, _widened, room, inside)
            elif name not in refused:
                _add(fresh, field, merge_types, room, inside)
    settled = [f.with_type(kind) for f in fresh.values() if (kind := _settled(f.type)) is not None]
    return pa.schema([*fields.values(), *settled])


@dataclass(slots=True)
class Room:
    """How many fields there may still be: what there is no room for is rescued.

    An object used as a map, with a key for every record, would otherwise make a table that nobody can read. Columns
    have a room of their own, so that such an object takes no column's place.
    """

    left: int


_Merge: TypeAlias = Callable[[pa.DataType, pa.DataType, Room], pa.DataType]


def merge_types(one: pa.DataType, other: pa.DataType, inside: Room) -> pa.DataType:
    """The type that holds values of both. Null stands for no value seen yet."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return _admitted(other, inside)
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _merged_struct(one, other, merge_types, inside)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merge_types(one.value_type, other.value_type, inside))
    inside.left += _fields_inside(one)
    return pa.string()


def storable(name: str) -> bool:
    return bool(name) and not _UNSTORABLE & set(name)


def _widened(known: pa.DataType, found: pa.DataType, inside: Room) -> pa.DataType:
    """A known type with the new fields of its structs. Nothing else about it changes."""
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        return _merged_struct(known, found, _widened, inside)
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_widened(known.value_type, found.value_type, inside))
    return known


def _merged_struct(one: pa.StructType, other: pa.StructType, merge: _Merge, inside: Room) -> pa.DataType:
    if all(_brings_nothing(one, field, inside) for field in other):
        return one
    fields = {f.name.lower(): f for f in one}
    nested = _smallest_first(other)
    for field in (*(f for f in other if not pa.types.is_nested(f.type)), *nested) if nested else other:
        _add(fields, field, merge, inside, inside)
    if nested:
        order = dict.fromkeys(f.name.lower() for kind in (one, other) for f in kind)
        fields = {name: fields[name] for name in order if name in fields}
    return pa.struct(list(fields.values()))


def _brings_nothing(kind: pa.StructType, field: pa.Field, inside: Room) -> bool:
    """Told without a look at all the fields of a large struct."""
    at = kind.get_field_index(field.name)
    return inside.left <= 0 if at < 0 else bool(kind.field(at).type == field.type)


def _smallest_first(found: Iterable[pa.Field]) -> list[pa.Field]:
    """The fields that have fields inside, in the order in which they get room: a large one takes no other's place."""
    nested = [f for f in found if pa.types.is_nested(f.type)]
    return sorted(nested, key=lambda f: _fields_inside(f.type)) if len(nested) > 1 else nested


def _add(fields: dict[str, pa.Field], field: pa.Field, merge: _Merge, room: Room, inside: Room) -> None:
    """Merge a field into those of a schema or a struct. Of two spellings of a name the first with a value counts."""
    name = field.name.lower()
    there = fields.get(name)
    if there is not None and there.name == field.name:
        if there.type != field.type:
            fields[name] = there.with_type(merge(there.type, field.type, inside))
        return
    if not storable(field.name):
        return
    kind = _settled(field.type) if merge is _widened else field.type
    if there is None and kind is not None and room.left > 0:
        room.left -= 1
    elif there is None or kind is None or not pa.types.is_null(there.type):
        return
    fields[name] = field.with_type(_admitted(kind, inside))


def _admitted(kind: pa.DataType, inside: Room) -> pa.DataType:
    """A found type, with as many fields as there is room for and without names that no table can have."""
    if pa.types.is_list(kind):
        return pa.list_(_admitted(kind.value_type, inside))
    return _merged_struct(pa.struct([]), kind, merge_types, inside) if pa.types.is_struct(kind) else kind


def _fields_inside(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(1 + _fields_inside(f.type) for f in kind)
    return _fields_inside(kind.value_type) if pa.types.is_list(kind) else 0


def _settled(kind: pa.DataType) -> pa.DataType | None:
    """A found type that a table can have: without fields that no value was seen of. None: nothing is left."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        fields = [f.with_type(inner) for f in kind if (inner := _settled(f.type)) is not None]
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        inner = _settled(kind.value_type)
        return pa.list_(inner) if inner is not None else None
    return kind


def _from_spark(field: StructField) -> pa.DataType:
    if not _is_plain(field.dataType):
        raise _refused(field.name, field.dataType.simpleString())
    return to_arrow_type(field.dataType, timezone="UTC")


def _is_plain(kind: DataType) -> bool:
    """Not VARIANT and the like, which travel through Arrow in disguise."""
    if isinstance(kind, StructType):
        return all(_is_plain(f.dataType) for f in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_plain(kind.elementType)
    if isinstance(kind, MapType):
        return _is_plain(kind.keyType) and _is_plain(kind.valueType)
    return isinstance(kind, _SPARK_PLAIN)


def _normal(name: str, kind: pa.DataType) -> pa.DataType:
    """The type as the parsers know it: 32-bit offsets, microseconds, UTC; or InvalidConfig."""
    if kind in _PLAIN:
        return kind
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else pa.timestamp("us")
    if pa.types.is_decimal128(kind) and kind.precision <= DECIMAL_PRECISION_MAX and 0 <= kind.scale <= kind.precision:
        return kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_normal(name, kind.value_type))
    if pa.types.is_struct(kind) and kind.num_fields:
        if len({f.name.lower() for f in kind}) < kind.num_fields:
            raise InvalidConfig(
                f"the column {name!r} has a field twice, cases aside: {kind}", key="schema", value=str(kind)
            )
        return pa.struct([pa.field(f.name, _normal(name, f.type)) for f in kind])
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return pa.map_(pa.string(), _normal(name, kind.item_type))
    raise _refused(name, str(kind))


def _refused(name: str, kind: str) -> InvalidConfig:
    return InvalidConfig(
        f"the column {name!r} has the type {kind}, which cannot be loaded; allowed: {ALLOWED}",
        key="schema",
        value=kind,
    )
