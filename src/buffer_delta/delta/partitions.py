"""Partition values: as text in Delta's log, as folders on disk, and the rows of a batch apart by them. Pure, no Spark.

A data file holds rows of one partition and not the columns the table is partitioned by: their values stand in the log.
Folders are named as Spark names them, for people and for tools that read folders; Delta itself goes by the log. There
are two differences. The folder of a timestamp is named in UTC, as the log's text is, and not in a session's time zone.
And letters beyond ASCII are percent-encoded in it, for the log's spelling of them is dangerous: Spark leaves them as
they are and delta-rs encodes them, so what delta-rs removes stays in the table for Spark; and if the log had them
encoded, Spark's VACUUM would delete files that are in use. A name without any is spelled the same by all.

Delta's log cannot tell an empty string from null, so Spark writes null for it, and so do we. A NOT NULL column takes
neither. Binary columns have no text that every reader understands: a table partitioned by one is Spark's to write. Some
values are refused: dates and times beyond the years 0 to 9999, else nobody could read the table any more, and what
Spark changes when it compacts: the text that names the folder of null to null, a time before the year 1 to another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from buffer.errors import InvalidInput

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

Values: TypeAlias = tuple[str | None, ...]
"""Of the partition columns, in their order, as the log has them."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}
LEVEL_BYTES_MAX = 255  # of one folder's name, on most file systems
_DAY_US = 86_400_000_000
_YEARS = (-719_528, -719_162, 2_932_897)  # from 1970: the first days of the years 0, 1 and 10,000
_KEPT_IN_URI = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-!.~'()*:@&=+$,;/")


def unsupported(kind: pa.DataType) -> bool:
    """Whether a column of this type cannot be partitioned by, by this module."""
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def folder(names: Sequence[str], values: Values) -> str:
    """The folder of a partition, relative to the table's, without a slash at its end; "" for no partition columns."""
    return "/".join(_level(name, value) for name, value in zip(names, values, strict=True))


def _level(name: str, value: str | None) -> str:
    level = f"{escaped(name)}={NULL_FOLDER if value is None else escaped(value)}"
    encoded = level if level.isascii() else "".join(c if c.isascii() else quote(c) for c in level)
    return encoded if len(encoded) <= LEVEL_BYTES_MAX else level  # as Spark does, before it cannot be written at all


def escaped(text: str) -> str:
    """As Hive and Spark write a name or a value in a path."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def as_uri(path: str) -> str:
    """A relative path as the log spells it: percent-encoded, as Java does it, which leaves most letters alone."""
    return "".join(c if _stays(c) else "".join(f"%{byte:02X}" for byte in c.encode()) for c in path)


def split(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows of each partition, in their order, without the partition columns. Rows of one partition come once."""
    if not names:
        yield (), batch
        return
    rest = batch.drop_columns(list(names))
    texts, group = _grouped([batch.column(name) for name in names])
    if len(texts) == 1:
        yield texts[0], rest
        return
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=len(texts)))
    start = 0
    for values, end in zip(texts, ends.tolist(), strict=True):
        # A copy for each, and no slices of one: a partition's few rows, which wait for long, would keep all the others.
        yield values, rest.take(pa.array(order[start:end]))
        start = end


def _grouped(columns: Sequence[pa.Array]) -> tuple[list[Values], Any]:
    """The different partitions, and for each row which of them it is in."""
    group = np.zeros(len(columns[0]), dtype=np.int64)
    found = [_texts(column) for column in columns]
    for texts, index in found:
        # Numbered anew after every column, so the product stays far from what 64 bits hold.
        group = np.unique(group * len(texts) + index, return_inverse=True)[1]
    first = np.unique(group, return_index=True)[1].tolist()
    return [tuple(texts[index[row]] for texts, index in found) for row in first], group


def _texts(column: pa.Array) -> tuple[list[str | None], Any]:
    """The different texts of a column, and for each row which one it has."""
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [text_of(encoded.dictionary.slice(at, 1)) for at in range(len(encoded.dictionary))]
    known: dict[str | None, int] = {}
    renamed = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
    return list(known), renamed[encoded.indices.to_numpy(zero_copy_only=False)]


def text_of(value: pa.Array) -> str | None:
    """One value (an array of length 1) in the form of Delta's log; None for null."""
    assert len(value) == 1
    if value.null_count:
        return None
    return _formatter(value.type)(value)


def _formatter(kind: pa.DataType) -> Callable[[pa.Array], str | None]:
    types = pa.types
    if types.is_floating(kind):
        return lambda value: java_float(value.to_numpy(zero_copy_only=False)[0])
    if types.is_boolean(kind):
        return lambda value: "true" if value[0].as_py() else "false"
    if types.is_date(kind) or types.is_timestamp(kind):
        return lambda value: _moment(value, kind)
    if types.is_decimal(kind):
        return lambda value: format(value[0].as_py(), "f")
    return lambda value: _plain(str(value[0].as_py()))


def _plain(text: str) -> str | None:
    if text == NULL_FOLDER:
        raise InvalidInput(f"the value for a partition column is {NULL_FOLDER}, which stands for null")
    return text or None


def _moment(value: pa.Array, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        days = value.cast(pa.date32()).cast(pa.int32())[0].as_py()
        _check_year(days, 0)
        return str(np.datetime64(days, "D"))
    micros = value.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())[0].as_py()
    _check_year(micros // _DAY_US, 1)
    text = str(np.datetime64(micros, "us"))
    if kind.tz:
        return f"{text}Z"
    day, _, time = text.partition("T")
    return f"{day} {time.rstrip('0').rstrip('.') if '.' in time else time}"


def _check_year(days: int, first: int) -> None:
    if not _YEARS[first] <= days < _YEARS[-1]:
        raise InvalidInput(
            f"the value for a partition column lies {days:,} days from 1970: it must be in the years {first} to 9999"
        )


def java_float(value: Any) -> str:
    """As Java prints a float or a double, which is how Spark and Delta write one as text."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e7:
        return str(np.format_float_positional(value, unique=True, trim="0"))
    mantissa, _, exponent = np.format_float_scientific(value, unique=True, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"


def _stays(character: str) -> bool:
    if character < "\x80":
        return character in _KEPT_IN_URI
    return unicodedata.category(character) not in ("Zs", "Zl", "Zp", "Cc")
