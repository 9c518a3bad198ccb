"""Numbers as they were written, into columns that may not hold them. What changes a value is a Mismatch."""

from __future__ import annotations

import decimal
import math
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

NUMBER_MAX = 4_000  # characters of a number that a DECIMAL is made of: it has 38 digits, the rest is zeros
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)  # one way to match: never quadratic
_NONZERO = re.compile(r"[-+0.]*[1-9]", re.ASCII)
_INFINITE = (float("inf"), float("-inf"))  # what 1e400 becomes
_EXACT = decimal.Context(prec=400, traps=[decimal.InvalidOperation])


class Mismatch(ValueError):
    """The value has no place in the column's type."""


class Number(float):
    """A number with point or exponent that remembers how it was written: 1.10 stays 1.10."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        self = super().__new__(cls, text)
        self.text = text
        return self


class MinusZero(int):
    """The whole number -0, which is 0 but was written otherwise."""

    text = "-0"


def to_float64(value: Any) -> float:
    """A whole number exactly; a Number to the nearest value, but not to zero or infinity; any other float as it is."""
    return _nearest(value, float)


def to_float32(value: Any) -> float:
    return _nearest(value, _nearest_float32)


def _nearest_float32(given: float) -> float:
    number: float = struct.unpack("f", struct.pack("f", float(given)))[0]
    if not isinstance(given, Number) or number == given:
        return number
    towards = np.float32(math.copysign(math.inf, given - number))
    other = float(np.nextafter(np.float32(number), towards))
    middle = decimal.Decimal(float(given))
    if (number + other) / 2 != given or (exact := decimal.Decimal(given.text)) == middle:
        return number
    # With 64 bits it is in the middle of two, but it was rounded to get there: only the text knows its side.
    return max(number, other) if exact > middle else min(number, other)


def _nearest(value: Any, to_float: Callable[[Any], float]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mismatch
    try:
        number = to_float(value)
    except OverflowError as error:  # beyond the type's range: 1e39 for FLOAT, an integer of more than 308 digits
        raise Mismatch from error
    if isinstance(value, int) and number != value:
        raise Mismatch
    if isinstance(value, Number) and (number in _INFINITE or (number == 0 and _NONZERO.match(value.text))):
        raise Mismatch
    return number


def to_decimal(value: Any, kind: pa.DataType) -> decimal.Decimal:
    """A number, or a number in a string, that fits without rounding."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value.bit_length() > 3 * NUMBER_MAX:
        raise Mismatch
    text = value.text if isinstance(value, Number) else str(int(value)) if whole else value
    if not isinstance(text, str) or len(text) > NUMBER_MAX or not _NUMBER.fullmatch(text):
        raise Mismatch
    try:
        number = decimal.Decimal(text)
        exact = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=_EXACT)
    except decimal.DecimalException as error:
        raise Mismatch from error
    if exact != number or len(exact.as_tuple().digits) > kind.precision:
        raise Mismatch
    return exact
