"""VARIANT: a column that holds any JSON value, of a type of its own in each row. For the format `json`.

Formats hand it on as JSON text, and Spark's own `parse_json` makes the VARIANT of it. That one rounds numbers which it
has no exact type for, and fails on what its parser has no room for. So only what it takes exactly gets there:

    whole numbers, and those with a point     at most 38 digits: BIGINT or DECIMAL, exactly
    numbers with an exponent                  the nearest DOUBLE, but not zero or infinity, as in a DOUBLE column
    texts, true, false, null inside, arrays   as they are
    objects                                   names of at most NAME_MAX characters; in which order they stand is lost
    all of it                                 at most TEXT_MAX bytes of JSON

Everything else is a Mismatch, and is rescued. NaN and Infinity, which are no JSON, are too.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from buffer_delta.formats.numbers import Mismatch, Number, to_float64

DIGITS_MAX = 38
NUMBER_MAX = 1000  # characters that Spark's parser takes
NAME_MAX = 50_000
TEXT_MAX = 16 << 20  # a VARIANT may have 128 MiB, and a text becomes up to four times as large


class Variant(pa.ExtensionType):
    """Only in schemas: the columns themselves are texts, see `as_text`."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "buffer.variant")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _serialized: bytes) -> Variant:
        return cls()

    def __str__(self) -> str:
        return "variant"

    def __hash__(self) -> int:
        return hash(self.extension_name)


VARIANT = Variant()
pa.register_extension_type(VARIANT)  # schemas travel between processes


def is_variant(kind: pa.DataType) -> bool:
    return isinstance(kind, Variant)


def as_text(schema: pa.Schema) -> pa.Schema:
    """The schema with its variants as texts."""
    return pa.schema([f.with_type(pa.string()) if is_variant(f.type) else f for f in schema])


def check_exact(value: Any) -> None:
    """Raise Mismatch for a JSON value that would be another one in a VARIANT. Its length is another question."""
    todo = [value]
    while todo:
        found = todo.pop()
        if isinstance(found, dict):
            if any(len(name) > NAME_MAX for name in found):
                raise Mismatch
            todo.extend(found.values())
        elif isinstance(found, list):
            todo.extend(found)
        elif isinstance(found, Number):
            _check_number(found)
        elif isinstance(found, float) or (isinstance(found, int) and abs(found) >= 10**DIGITS_MAX):
            raise Mismatch


def _check_number(value: Number) -> None:
    text = value.text.lower()
    if len(text) > NUMBER_MAX:
        raise Mismatch
    if "e" in text:
        to_float64(value)
        return
    whole, _, fraction = text.removeprefix("-").partition(".")
    if len(fraction) > DIGITS_MAX or len((whole + fraction).lstrip("0")) > DIGITS_MAX:
        raise Mismatch
