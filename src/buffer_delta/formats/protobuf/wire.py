"""Numbers that were written larger than their fields are: the library cuts them without a word.

Protocol Buffers let a producer make an int64 of an int32, or an int32 of a bool, and readers with the older type get
the last 32 bits of such a number, or `true` for 2. Here it is an error instead, as in Avro. A message that is written
again to the very same bytes has lost nothing, which is soon told; only the others are walked through, number by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_VARINT, _FIXED64, _BYTES, _GROUP, _END, _FIXED32 = range(6)
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_RANGES = {  # numbers that fit: up to the first, and from the second on, where those below zero are
    **dict.fromkeys(("TYPE_INT32", "TYPE_ENUM"), (2**31 - 1, 2**64 - 2**31)),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_SINT32"), (2**32 - 1, 2**64)),
    **dict.fromkeys(("TYPE_INT64", "TYPE_UINT64", "TYPE_SINT64"), (2**64 - 1, 2**64)),
    "TYPE_BOOL": (1, 2**64),
}


class CutNumber(ValueError):
    """A field cannot hold the number that was written for it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What may be cut in a field: its numbers, or those of the message in it."""

    name: str
    range: tuple[int, int] | None
    is_repeated: bool
    inner: Any
    wire: int
    """How such a message is written."""


def check_numbers(payload: bytes, message: Any) -> None:
    """Raise CutNumber unless every number of an entry stands in the message that was read from it."""
    if message.SerializePartialToString(deterministic=True) != payload:
        _walk(payload, 0, len(payload), message.DESCRIPTOR)


@lru_cache(maxsize=4096)
def _places(descriptor: Any) -> dict[int, _Place]:
    return {field.number: _place(field) for field in descriptor.fields}


def _place(field: Any) -> _Place:
    ranges = {getattr(field, name): found for name, found in _RANGES.items()}
    wire = _GROUP if field.type == field.TYPE_GROUP else _BYTES
    return _Place(field.full_name, ranges.get(field.type), field.is_repeated, field.message_type, wire)


def _walk(data: bytes, at: int, end: int, descriptor: Any) -> int:
    """Through a message that the library has read, up to its end. `descriptor`: None for one that is not known."""
    places = {} if descriptor is None else _places(descriptor)
    while at < end:
        tag, at = _number(data, at)
        wire, place = tag & 7, places.get(tag >> 3)
        if wire == _END:
            return at
        if wire == _VARINT:
            number, at = _number(data, at)
            _check(number, place)
        elif wire == _GROUP:
            is_known = place is not None and place.wire == _GROUP
            at = _walk(data, at, end, place.inner if place is not None and is_known else None)
        elif wire == _BYTES:
            size, at = _number(data, at)
            if place is not None and place.inner is not None and place.wire == _BYTES:
                _walk(data, at, at + size, place.inner)
            elif place is not None and place.range is not None and place.is_repeated:
                _check_packed(data, at, at + size, place)
            at += size
        else:
            at += _SIZES[wire]
    return at


def _check_packed(data: bytes, at: int, end: int, place: _Place) -> None:
    while at < end:
        number, at = _number(data, at)
        _check(number, place)


def _check(number: int, place: _Place | None) -> None:
    if place is None or place.range is None:
        return
    most, negative = place.range
    if not (number <= most or negative <= number < 2**64):
        raise CutNumber(f"the field {place.name!r} cannot hold the number {number}, as it was written")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """What was read already does not end within a number."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7
