"""Columns and fields under the names that a table has for them, and in its order. Pure.

Spark does not tell cases apart and finds a struct's fields by name wherever they stand; the files' own rules
(`fitting`) do. So this comes before them. Values and the types of what holds no others stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from buffer_delta.formats.names import same_name_key


def conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows by the names of `schema`, without empty batches."""
    for batch in batches:
        if batch.num_rows:
            yield conform(batch, schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """What the table does not know keeps its name, and comes last."""
    if batch.schema.equals(schema):
        return batch
    places = {same_name_key(name): place for place, name in enumerate(batch.schema.names)}
    made = {}
    for field in schema:
        place = places.pop(same_name_key(field.name), None)
        if place is not None:
            made[field.name] = _as(batch.column(place), field.type)
    others = {batch.schema.names[place]: batch.column(place) for place in places.values()}
    return pa.RecordBatch.from_pydict(made | others)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _as_struct(array, kind)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        array = _at_its_beginning(array)
        return pa.ListArray.from_arrays(array.offsets, _as(array.values, kind.value_type), mask=_nulls(array))
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        array = _at_its_beginning(array)
        keys, items = _as(array.keys, kind.key_type), _as(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, mask=_nulls(array))
    return array


def _as_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    places = {same_name_key(array.type.field(at).name): at for at in range(array.type.num_fields)}
    children = []
    for at in range(kind.num_fields):
        field = kind.field(at)
        place = places.pop(same_name_key(field.name), None)
        child = pa.nulls(len(array), field.type) if place is None else pc.struct_field(array, place)
        children.append((field.name, _as(child, field.type)))
    children += [(array.type.field(at).name, pc.struct_field(array, at)) for at in places.values()]
    fields = [pa.field(name, child.type) for name, child in children]
    return pa.StructArray.from_arrays([child for _, child in children], fields=fields, mask=_nulls(array))


def _nulls(array: pa.Array) -> pa.Array | None:
    return pc.is_null(array) if array.null_count else None


def _at_its_beginning(array: pa.Array) -> pa.Array:
    """A copy of a slice, for what cannot be told of one: offsets together with nulls."""
    return array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
