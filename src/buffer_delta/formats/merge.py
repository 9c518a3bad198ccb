"""How the schemas of evolving formats merge, and how their columns are settled. Pure, whatever comes first.

Merging rules, for schemas that follow the data. A value that does not fit is never lost: it stays, as it came, in
the rescued column.

    a new field                       becomes a column
    int and double                    double
    struct and struct                 field by field; list and list: by element
    anything else, both new           string: every value has a text
    a known column, another type      stays as it is; values that do not fit it are rescued. Where the table can widen
                                      its columns, the type that the format names for both (`Format.wider`)
    a name that Delta cannot store, that is too long, that Spark takes for another one (see `names`), or that is
    taken: never a column, nor a struct's field
    more than `max_columns` columns, or more fields inside of structs: never there either
    types within types more than NESTED_MAX deep, or a schema of more than SCHEMA_BYTES_MAX: the same
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from buffer_delta.formats.base import MAX_COLUMNS, Format
from buffer_delta.formats.names import same_name_key, storable
from buffer_delta.formats.schemas import NESTED_MAX, known_columns, nested

SCHEMA_BYTES_MAX = 4 << 20
"""Of the schema in Delta's log, which is one JSON string: Spark cannot read one of more than 20 million characters."""
_FIELD_BYTES = 100  # of a field there, besides its name
_ESCAPED = frozenset('"\\')

_Wider: TypeAlias = Callable[[pa.DataType, pa.DataType], pa.DataType | None]
_Merge: TypeAlias = Callable[[pa.DataType, pa.DataType, "Room"], pa.DataType]


def settle(
    form: Format, table: Any, found: pa.Schema, taken: Collection[str] = (), *, may_widen: bool = False
) -> Format:
    """An evolving format with its columns settled: the table's, and those that were found besides.

    `table` is its StructType, None where there is no table yet. `taken` are the provenance columns and whatever
    else the data must not fill. `may_widen`: the table's columns may get types that hold more.
    """
    known, reserved = known_columns(
        table,
        [*taken, *([form.rescued_column] if form.rescued_column else [])],
        variants=form.has_variants,
        given=() if form.rescued_column else found.names,
    )
    wider = form.wider if may_widen else _never
    return form.with_schema(merge_schemas(known, [found], taken=reserved, max_columns=form.max_columns, wider=wider))


def _never(_known: pa.DataType, _found: pa.DataType) -> pa.DataType | None:
    return None


def merge_schemas(
    known: pa.Schema | None,
    found: Iterable[pa.Schema],
    *,
    taken: Collection[str] = (),
    max_columns: int = MAX_COLUMNS,
    wider: _Wider = _never,
) -> pa.Schema:
    """The known columns, unchanged but for new fields in their structs, and those found besides, in order.

    A known type that `wider` has an answer for changes to that.

    `taken` names are never added; nor are columns beyond `max_columns`, or fields of structs beyond as many again.
    """
    fields = {same_name_key(f.name): f for f in known} if known is not None else {}
    fresh: dict[str, pa.Field] = {}
    refused = {same_name_key(name) for name in taken}
    text = Text(SCHEMA_BYTES_MAX - sum(map(_text_bytes, fields.values())))
    room = Room(max_columns - len(fields), text)
    inside = Room(max_columns - sum(_fields_inside(f.type) for f in fields.values()), text)
    widened = partial(_widened, wider)
    for schema in map(_shallow, found):
        nested = _smallest_first(schema)
        hollow = [f.with_type(pa.null()) if pa.types.is_nested(f.type) else f for f in schema] if nested else schema
        for field in (*hollow, *nested):  # every column has its place before anything inside of them has
            name = same_name_key(field.name)
            if name in fields:
                _add(fields, field, widened, room, inside)
            elif name not in refused:
                _add(fresh, field, merge_types, room, inside)
    settled = [f.with_type(kind) for f in fresh.values() if (kind := _settled(f.type)) is not None]
    return pa.schema([*fields.values(), *settled])


@dataclass(slots=True)
class Text:
    """How many bytes the schema's text may still grow by."""

    left: int


@dataclass(slots=True)
class Room:
    """How many fields there may still be: what there is no room for is rescued.

    An object used as a map, with a key for every record, would otherwise make a table that nobody can read. Columns
    have a room of their own, so that such an object takes no column's place. The schema's text they share.
    """

    left: int
    text: Text

    def take(self, name: str) -> bool:
        """Whether there is room for one more field of that name; then it has it."""
        cost = _name_bytes(name)
        if self.left <= 0 or self.text.left < cost:
            return False
        self.left -= 1
        self.text.left -= cost
        return True


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


def _widened(wider: _Wider, known: pa.DataType, found: pa.DataType, inside: Room) -> pa.DataType:
    """A known type with the new fields of its structs. Nothing else about it changes, unless `wider` says so."""
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        return _merged_struct(known, found, partial(_widened, wider), inside)
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_widened(wider, known.value_type, found.value_type, inside))
    return wider(known, found) or known


def _merged_struct(one: pa.StructType, other: pa.StructType, merge: _Merge, inside: Room) -> pa.DataType:
    if all(_brings_nothing(one, field, inside) for field in other):
        return one
    fields = {same_name_key(f.name): f for f in one}
    nested = _smallest_first(other)
    for field in (*(f for f in other if not pa.types.is_nested(f.type)), *nested) if nested else other:
        _add(fields, field, merge, inside, inside)
    if nested:
        order = dict.fromkeys(same_name_key(f.name) for kind in (one, other) for f in kind)
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
    name = same_name_key(field.name)
    there = fields.get(name)
    if there is not None and there.name == field.name:
        if there.type != field.type:
            fields[name] = there.with_type(merge(there.type, field.type, inside))
        return
    if not storable(field.name):
        return
    kind = field.type if merge is merge_types else _settled(field.type)
    if there is None:
        if kind is None or not room.take(field.name):
            return
    elif kind is None or not pa.types.is_null(there.type):
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


def _text_bytes(field: pa.Field) -> int:
    inside = [field.type.field(at) for at in range(field.type.num_fields)]
    return _name_bytes(field.name) + sum(map(_text_bytes, inside))


def _name_bytes(name: str) -> int:
    """Of a field in Delta's log: there the schema is JSON in a JSON string, so a quote takes four bytes."""
    return _FIELD_BYTES + len(name.encode()) + 3 * sum(sign in _ESCAPED for sign in name)


def _shallow(schema: pa.Schema) -> pa.Schema:
    """A found schema without what is nested too deeply: Arrow's messages take 64 levels, and readers often fewer."""
    if all(nested(f.type) <= NESTED_MAX for f in schema):
        return schema
    return pa.schema([f.with_type(_cut(f.type, NESTED_MAX)) for f in schema])


def _cut(kind: pa.DataType, levels: int) -> pa.DataType:
    if not pa.types.is_nested(kind):
        return kind
    if levels == 0:
        return pa.null()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_cut(f.type, levels - 1)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_cut(kind.value_type, levels - 1))
    return kind if nested(kind) <= levels else pa.null()


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
