"""JSON text to Python's values and back, with every number as it was written. What a record must be: see `records`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from buffer_delta.formats.numbers import MinusZero, Number

DEPTH_MAX = 200
"""Deeper records are bad. Real ones have a dozen levels; a hundred thousand crash C++ parsers."""

_SHOWN_MAX = 80  # characters of a value in an error message


class BadRecord(ValueError):
    """The entry is not one JSON object."""


class NameTwice(BadRecord):
    """It is one, and a name is there twice in an object of it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the name {shown(name)} is there twice in one object")


def names_twice(pairs: list[tuple[str, Any]]) -> Iterator[str]:
    """The names that are there twice, unless both are null."""
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen and not (value is None and seen[name] is None):
            yield name
        seen[name] = value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        for name in names_twice(pairs):
            raise NameTwice(name)
    return found


_DIGITS_MAX = 4000  # Python refuses to read longer whole numbers


_MINUS_ZERO = re.compile(r"[:\[,\s]-0\s*[,\]}]")


def _whole(text: str) -> int | Number:
    if text == MinusZero.text:
        return MinusZero()
    return int(text) if len(text) <= _DIGITS_MAX else Number(text)


def has_minus_zero(text: str) -> bool:
    return "-0" in text and _MINUS_ZERO.search(text) is not None


class Decoder:
    """JSON text to Python's values, with numbers that remember how they were written."""

    def __init__(self, make_object: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> None:
        self._exact = json.JSONDecoder(object_pairs_hook=make_object, parse_float=Number).decode
        self._long = json.JSONDecoder(object_pairs_hook=make_object, parse_float=Number, parse_int=_whole).decode

    def decode(self, text: str) -> Any:
        try:
            return self._long(text) if has_minus_zero(text) else self._exact(text)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            if isinstance(error, BadRecord):
                raise
            return self._long(text)  # it has a whole number with thousands of digits


decode_plain = json.JSONDecoder(object_pairs_hook=_object).decode
"""With numbers as Python has them."""
_STRICT = Decoder(_object)


def load(entry: bytes, decoder: Decoder = _STRICT) -> dict[str, Any]:
    """The record. Raises BadRecord."""
    record = load_value(entry, decoder)
    if not isinstance(record, dict):
        raise BadRecord(f"not a JSON object but {_kind(record)}")
    return record


def load_value(entry: bytes, decoder: Decoder = _STRICT) -> Any:
    """Any JSON value, by the same rules. Raises BadRecord."""
    try:
        text = entry.decode()
        value = decoder.decode(text)
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise BadRecord(f"nested deeper than {DEPTH_MAX} levels") from error
    except json.JSONDecodeError as error:
        what = "empty" if not entry.strip() else f"not JSON: {error.msg} at character {error.pos}"
        raise BadRecord(what) from error
    if text.count("{") + text.count("[") > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise BadRecord(f"nested deeper than {DEPTH_MAX} levels")
    if "\\u" in text and _has_lone_surrogate(value):
        raise BadRecord("not JSON: half of a surrogate pair in a string")
    return value


def to_text(value: Any) -> str:
    """Compact JSON, with every number as it was written."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Number | MinusZero):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{to_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    return json.dumps(value)


def shown(value: Any) -> str:
    text = to_text(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


# Small things


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "a string" if isinstance(value, str) else "an array" if isinstance(value, list) else "a number"


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return depth


def _has_lone_surrogate(record: dict[str, Any]) -> bool:
    try:
        to_text(record).encode()
    except UnicodeEncodeError:
        return True
    return False
