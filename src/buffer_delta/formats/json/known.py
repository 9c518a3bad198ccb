"""Records of which only the fields with a column count: JSON with `unknown_fields="ignore"`, one record at a time.

Arrow's parser passes over what it was given no column for, and does not see a name that is there twice in it. So that
must not make a record bad here either: else it would depend on its neighbours, with which it is parsed together, what
becomes of it. A name that is there twice in what has a column makes it bad, as ever.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from buffer_delta.formats.json.reading import Decoder, NameTwice, load, names_twice


class _Doubled(dict[str, Any]):
    """An object with names that are there twice."""

    names: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs) or not (names := frozenset(names_twice(pairs))):
        return found
    doubled = _Doubled(found)
    doubled.names = names
    return doubled


_LENIENT = Decoder(_object)


def load_known(entry: bytes, columns: pa.Schema) -> dict[str, Any]:
    """The record; without its other fields, if a name in those is there twice. Raises BadRecord."""
    try:
        return load(entry)
    except NameTwice:
        return _known_fields(load(entry, _LENIENT), pa.struct(list(columns)))


def _known_fields(value: dict[str, Any], kind: pa.StructType) -> dict[str, Any]:
    doubled = value.names if isinstance(value, _Doubled) else frozenset()
    found = {}
    for field in kind:
        if field.name in doubled:
            raise NameTwice(field.name)
        if field.name in value:
            found[field.name] = _known(value[field.name], field.type)
    return found


def _known(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return _known_fields(value, kind)
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_known(inner, kind.value_type) for inner in value]
    _check_all(value)
    return value


def _check_all(value: Any) -> None:
    """A value that is kept as a whole, as text say, has no name twice anywhere."""
    if isinstance(value, _Doubled):
        raise NameTwice(next(iter(sorted(value.names))))
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_all(inner)
