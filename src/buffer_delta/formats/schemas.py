"""Schemas that a user may give, as the Arrow schemas that formats work with.

A DDL string, an Arrow schema, or Spark's StructType: of that its JSON is read, so Spark need not be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.formats.ddl import ALLOWED, DECIMAL_PRECISION_MAX, TIMESTAMP, parse_ddl
from buffer_delta.formats.ddl import NESTED_MAX as GIVEN_NESTED_MAX
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.struct_json import UnknownType, arrow_type, is_computed, struct_fields
from buffer_delta.formats.variant import VARIANT, is_variant

_PLAIN = frozenset(
    (
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32()),
    )
)


_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)

NESTED_MAX = 32
"""Levels of types within types that follow the data: half of what Arrow's messages take."""


def nested(kind: pa.DataType) -> int:
    """The levels of a type: 0 for one that holds no others."""
    return max((1 + nested(kind.field(at).type) for at in range(kind.num_fields)), default=0)


def arrow_schema(given: Any, *, variants: bool = False) -> pa.Schema:
    """The Arrow schema of a DDL string, a StructType or an Arrow schema. Raises InvalidConfig.

    `variants`: columns may be VARIANT. What is inside of a column may not.
    """
    try:
        return _normal_schema(_as_arrow(given, variants), given, variants)
    except RecursionError as error:  # a StructType's own methods, or Arrow's, call themselves for each level
        raise _too_deep("schema", type(given).__name__) from error


def _as_arrow(given: Any, variants: bool) -> pa.Schema:
    if isinstance(given, str):
        return parse_ddl(given)
    if isinstance(given, pa.Schema):
        return given
    if (struct := struct_fields(given)) is not None:
        return pa.schema([pa.field(f["name"], _from_struct(f, variants), nullable=f["nullable"]) for f in struct])
    raise InvalidConfig(
        f"schema={given!r} is not allowed: it must be a DDL string ('id BIGINT, name STRING'), a StructType "
        "or an Arrow schema",
        key="schema",
        value=given,
    )


def _normal_schema(schema: pa.Schema, given: Any, variants: bool) -> pa.Schema:
    fields = [pa.field(f.name, _checked(f.name, f.type, variants), nullable=f.nullable) for f in schema]
    names = [same_name_key(f.name) for f in fields]
    twice = {name for name, count in Counter(names).items() if count > 1}
    if twice or not fields:
        raise InvalidConfig(
            f"the schema has {f'columns twice: {sorted(twice)}' if twice else 'no columns'}",
            key="schema",
            value=given,
        )
    return pa.schema(fields)


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([f.with_nullable(True) for f in schema])


def schema_text(schema: pa.Schema) -> list[list[Any]]:
    """A stable form for digests: name, type, nullable."""
    return [[f.name, str(f.type), f.nullable] for f in schema]


def holds(kind: pa.DataType, found: pa.DataType) -> bool:
    """Whether a type has a place for every field of every struct inside another one."""
    if pa.types.is_struct(kind) and pa.types.is_struct(found):
        names = {f.name: f.type for f in kind}
        inside = [f.name for f in found]
        return len(set(inside)) == len(inside) and all(f.name in names and holds(names[f.name], f.type) for f in found)
    if pa.types.is_map(kind) and pa.types.is_map(found):
        return holds(kind.item_type, found.item_type)
    if pa.types.is_list(kind) and isinstance(found, _LISTS):
        return holds(kind.value_type, found.value_type)
    if pa.types.is_list(kind) and pa.types.is_map(found):
        return holds(kind.value_type, pa.struct([found.key_field, found.item_field]))
    return True


def known_columns(
    table: Any, taken: Collection[str], *, variants: bool = False, given: Collection[str] = ()
) -> tuple[pa.Schema, set[str]]:
    """The columns of a table's StructType that a format may fill, and the names that it must leave alone.

    `given` are those that the data fills even if Delta computes them, for it has no other place for what it says.
    """
    fields, reserved = [], {same_name_key(name) for name in taken}
    said = {same_name_key(name) for name in given}
    for field in struct_fields(table) or ():
        name = field["name"]
        if same_name_key(name) in reserved:
            continue
        if is_computed(field.get("metadata") or {}) and same_name_key(name) not in said:
            # A null for records without it would be refused.
            reserved.add(same_name_key(name))
            continue
        try:
            fields.append(pa.field(name, _checked(name, _from_struct(field, variants), variants)))
        except InvalidConfig:  # a type we cannot write, added by somebody else: its name is taken all the same
            reserved.add(same_name_key(name))
    return pa.schema(fields), reserved


def _from_struct(field: dict[str, Any], variants: bool) -> pa.DataType:
    if variants and field["type"] == "variant":
        return VARIANT
    try:
        return arrow_type(field["type"])
    except UnknownType as error:  # VARIANT and the like, which travel through Arrow in disguise
        raise _refused(field["name"], str(error)) from error


def _checked(name: str, kind: pa.DataType, variants: bool) -> pa.DataType:
    if is_variant(kind) and variants:
        return kind
    if nested(kind) > GIVEN_NESTED_MAX:
        raise _too_deep(name, "types within types")
    return _normal(name, kind)


def _too_deep(name: str, what: str) -> InvalidConfig:
    return InvalidConfig(
        f"{name!r} is nested too deeply: at most {GIVEN_NESTED_MAX} levels can be loaded; keep what is deeper as JSON "
        "text, in a STRING",
        key="schema",
        value=what,
    )


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
        if len({same_name_key(f.name) for f in kind}) < kind.num_fields:
            raise InvalidConfig(
                f"the column {name!r} has a field twice, cases aside: {kind}", key="schema", value=str(kind)
            )
        return pa.struct([pa.field(f.name, _normal(name, f.type)) for f in kind])
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return pa.map_(pa.string(), _normal(name, kind.item_type))
    raise _refused(name, str(kind))


def _refused(name: str, kind: str) -> InvalidConfig:
    hint = " (VARIANT is for columns of the format json, not for what is inside of them)" if kind == "variant" else ""
    return InvalidConfig(
        f"the column {name!r} has the type {kind}, which cannot be loaded{hint}; allowed: {ALLOWED}",
        key="schema",
        value=kind,
    )
