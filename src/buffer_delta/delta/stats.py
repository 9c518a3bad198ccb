"""The statistics of a data file as Delta's log keeps them: JSON text, made from Arrow columns. Pure, no Spark.

What Spark's own writer collects, this collects, of the same columns and with the same values:

- `delta.dataSkippingStatsColumns` names the columns, else the first `delta.dataSkippingNumIndexedCols` (32) leaves of
  the file's columns are taken, a negative number takes all. An array or a map is one leaf, and so is what is in none.
- Nulls of every such leaf are counted; a null struct makes its leaves null.
- Numbers, dates, timestamps and strings have a minimum and a maximum. A leaf that is null everywhere has none.
- NaN is larger than any number, and written as a string like the infinities. -0.0 and 0.0 are equal: the first stays.
- Strings are compared by their UTF-8 bytes. A minimum is cut, a maximum is cut and rounded up (`cut_max`).
  Spark's strings may hold any bytes, those of a cast from BINARY do: a bound that is not UTF-8 is none.
- Timestamps are cut to milliseconds, down also for the maximum: readers allow for that.

Two things differ from Spark's text and never from its meaning: timestamps are in UTC, where Spark has the offset of its
session, and numbers may be spelled in another way. A bound that is no date in the years 1 to 9999 is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from buffer.errors import InvalidConfig

INDEXED_LEAVES = 32
STRING_PREFIX = 32

_NUM_INDEXED = "delta.dataSkippingNumIndexedCols"
_COLUMNS = "delta.dataSkippingStatsColumns"
_PREFIX = "delta.dataSkippingStringPrefixLength"
_ASCII_MAX, _UNICODE_MAX = "\x7f", "\U0010ffff"
_PART = re.compile(r"\s*(`(?:[^`]|``)+`|[^`.,\s](?:[^`.,]*[^`.,\s])?)\s*(\.|,|$)")
_DAY_S = 86_400
_YEAR_1_S, _YEAR_10000_S = -719_162 * _DAY_S, 2_932_897 * _DAY_S

Tree: TypeAlias = "dict[str, Tree | Leaf]"


@dataclass(frozen=True, slots=True)
class StatsRules:
    """Which columns of a table have statistics, and how long its strings are in them."""

    columns: tuple[tuple[str, ...], ...] | None = None
    """Each as its path through structs; a struct stands for all that is in it. None: the first leaves."""
    leaves: int = INDEXED_LEAVES
    """How many of the first leaves, where `columns` is None; a negative number: all."""
    string_prefix: int = STRING_PREFIX
    tight_bounds: bool = False
    """Tables that may have deletion vectors say of each file whether its bounds are exact."""

    @classmethod
    def of_properties(cls, properties: Mapping[str, str], *, deletion_vectors: bool = False) -> StatsRules:
        """From a table's properties; `deletion_vectors` tells whether its protocol has that feature."""
        columns = properties.get(_COLUMNS)
        return cls(
            columns=None if columns is None else column_list(columns),
            leaves=_number(properties, _NUM_INDEXED, INDEXED_LEAVES),
            string_prefix=_number(properties, _PREFIX, STRING_PREFIX),
            tight_bounds=deletion_vectors,
        )

    def select(self, schema: pa.Schema) -> Tree:
        """The leaves that have statistics, among a file's columns."""
        if self.columns is not None:
            return _named(schema, [tuple(part.lower() for part in path) for path in self.columns])
        return _first(schema, self.leaves if self.leaves >= 0 else 1 << 62)[0]


class Leaf:
    """The bounds and the nulls of one column so far. `kind` is its Arrow type."""

    __slots__ = ("_has_bounds", "_max", "_min", "kind", "nulls")

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.nulls = 0
        self._has_bounds = _has_bounds(kind)
        self._min: Any = None
        self._max: Any = None

    def add(self, values: pa.Array | pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        if values.null_count == len(values) or not self._has_bounds:
            return
        try:
            bounds = list(_bounds(values, self.kind))
        except UnicodeDecodeError:
            self._has_bounds, self._min, self._max = False, None, None
            return
        for low, high in bounds:
            if self._min is None or _less(low, self._min):
                self._min = low
            if self._max is None or _less(self._max, high):
                self._max = high

    def min_text(self, prefix: int) -> str | None:
        """As JSON; None: there is none."""
        if isinstance(self._min, str):
            return json.dumps(self._min[:prefix], ensure_ascii=False)
        return None if self._min is None else _text(self._min, self.kind)

    def max_text(self, prefix: int) -> str | None:
        if isinstance(self._max, str):
            cut = cut_max(self._max, prefix)
            return None if cut is None else json.dumps(cut, ensure_ascii=False)
        return None if self._max is None else _text(self._max, self.kind)


class FileStats:
    """Collects over the rows of one file, batch by batch or many at once."""

    def __init__(self, rules: StatsRules, schema: pa.Schema) -> None:
        """`schema`: the columns in the file, without those the table is partitioned by."""
        self._rules = rules
        self._tree = rules.select(schema)
        self._rows = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        self._rows += rows.num_rows
        for name, node in self._tree.items():
            _add(node, rows.column(name))

    def to_json(self) -> str:
        prefix = self._rules.string_prefix
        parts = [f'"numRecords":{self._rows}']
        if any(_has_bounds(leaf.kind) for leaf in _leaves(self._tree)):
            parts.append(f'"minValues":{_json(self._tree, lambda leaf: leaf.min_text(prefix), True)}')
            parts.append(f'"maxValues":{_json(self._tree, lambda leaf: leaf.max_text(prefix), True)}')
        if self._tree and any(True for _ in _leaves(self._tree)):
            parts.append(f'"nullCount":{_json(self._tree, lambda leaf: str(leaf.nulls), False)}')
        if self._rules.tight_bounds:
            parts.append('"tightBounds":true')
        return "{" + ",".join(parts) + "}"


def file_stats(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rules: StatsRules | None = None) -> str:
    """The statistics of a file with these batches."""
    stats = FileStats(rules or StatsRules(), schema)
    for batch in batches:
        stats.add(batch)
    return stats.to_json()


def cut_max(text: str, prefix: int) -> str | None:
    """A string that is no less than `text`, by its UTF-8 bytes, and about `prefix` characters long.

    Characters count as Java's do: those beyond U+FFFF are two. The character after the cut is replaced by a larger
    one, U+007F or the largest that there is; where the string itself has that one, the cut comes after it. None: no
    short string is large enough.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    length = len(units) // 2
    if length <= prefix:
        return text
    if prefix <= 0:
        return None

    def unit(at: int) -> int:
        return int.from_bytes(units[2 * at : 2 * at + 2], "big")

    def head(end: int) -> str:
        return units[: 2 * end].decode("utf-16-be", "surrogatepass")

    at = prefix
    if 0xD800 <= unit(at - 1) < 0xDC00 and 0xDC00 <= unit(at) < 0xE000:
        at += 1
    while at <= 2 * prefix:
        if at >= length:
            return text
        if at + 1 < length and (unit(at), unit(at + 1)) == (0xDBFF, 0xDFFF):
            at += 2
        else:
            return head(at) + (_ASCII_MAX if unit(at) < ord(_ASCII_MAX) else _UNICODE_MAX)
    return None


def column_list(text: str) -> tuple[tuple[str, ...], ...]:
    """Columns as `delta.dataSkippingStatsColumns` lists them: ``a, s.x, `odd.name`.y``. Raises InvalidConfig."""
    paths: list[tuple[str, ...]] = []
    path: list[str] = []
    at, ended = 0, not text.strip()
    while not ended:
        found = _PART.match(text, at)
        if not found:
            raise InvalidConfig(f"{_COLUMNS}={text!r} is not a list of columns", key=_COLUMNS, value=text)
        name, separator = found.groups()
        path.append(name[1:-1].replace("``", "`") if name.startswith("`") else name)
        if separator != ".":
            paths.append(tuple(path))
            path = []
        at, ended = found.end(), separator == ""
    return tuple(paths)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(properties.get(name, default))
    except ValueError:
        raise InvalidConfig(
            f"the table's property {name} is not a number: {properties[name]!r}", key=name, value=properties[name]
        ) from None


# Which columns


def _named(fields: Iterable[pa.Field], paths: list[tuple[str, ...]]) -> Tree:
    tree: Tree = {}
    for field in fields:
        rests = [path[1:] for path in paths if path[0] == field.name.lower()]
        if not rests:
            continue
        if all(not rest for rest in rests):
            tree[field.name] = _whole(field.type)
        elif pa.types.is_struct(field.type):
            tree[field.name] = _named(field.type, [rest for rest in rests if rest])
    return tree


def _whole(kind: pa.DataType) -> Tree | Leaf:
    return {field.name: _whole(field.type) for field in kind} if pa.types.is_struct(kind) else Leaf(kind)


def _first(fields: Iterable[pa.Field], count: int) -> tuple[Tree, int]:
    """The first `count` leaves, and how many there are of them."""
    tree: Tree = {}
    taken = 0
    for field in fields:
        if taken >= count:
            break
        if pa.types.is_struct(field.type):
            tree[field.name], inside = _first(field.type, count - taken)
            taken += inside
        else:
            tree[field.name] = Leaf(field.type)
            taken += 1
    return tree, taken


def _leaves(tree: Tree) -> Iterator[Leaf]:
    for node in tree.values():
        if isinstance(node, Leaf):
            yield node
        else:
            yield from _leaves(node)


# Values


def _add(node: Tree | Leaf, values: pa.Array | pa.ChunkedArray) -> None:
    if isinstance(node, Leaf):
        node.add(values)
        return
    for name, below in node.items():
        at = values.type.get_field_index(name)
        _add(below, pc.struct_field(values, [at]))  # null where the struct is


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
    )


def _bounds(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> Iterator[tuple[Any, Any]]:
    if pa.types.is_floating(kind):
        yield from _float_bounds(values)
        return
    if pa.types.is_date(kind):
        values = values.cast(pa.int32()) if pa.types.is_date32(kind) else values.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    found = pc.min_max(values)
    yield found["min"].as_py(), found["max"].as_py()


def _float_bounds(values: pa.Array | pa.ChunkedArray) -> Iterator[tuple[Any, Any]]:
    """As numpy's scalars of the column's own width, which are printed the shorter."""
    numbers = values.drop_null().to_numpy(zero_copy_only=False)
    nan = np.isnan(numbers)
    if nan.any():
        one = numbers.dtype.type("nan")
        yield one, one
        numbers = numbers[~nan]
        if not len(numbers):
            return
    low, high = numbers.min(), numbers.max()
    if low == 0 or high == 0:  # of 0.0 and -0.0 the first counts, and numpy does not promise which one it takes
        zero = numbers[numbers == 0][0]
        low, high = (zero if low == 0 else low), (zero if high == 0 else high)
    yield low, high


def _less(a: Any, b: Any) -> bool:
    if isinstance(a, float | np.floating):
        if math.isnan(a):
            return False
        return bool(math.isnan(b) or a < b)
    return bool(a < b)  # Python compares strings by code points, which is the order of their UTF-8 bytes


def _text(value: Any, kind: pa.DataType) -> str | None:
    """A bound as JSON."""
    if pa.types.is_date(kind):
        return _moment(value * _DAY_S * 1000 if pa.types.is_date32(kind) else value, kind)
    if pa.types.is_timestamp(kind):
        per_ms = {"s": 0.001, "ms": 1, "us": 1000, "ns": 1_000_000}[kind.unit]
        return _moment(value * 1000 if per_ms < 1 else value // int(per_ms), kind)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return '"NaN"'
        if math.isinf(value):
            return '"Infinity"' if value > 0 else '"-Infinity"'
        return str(value)
    return str(value)


def _moment(milliseconds: int, kind: pa.DataType) -> str | None:
    if not _YEAR_1_S * 1000 <= milliseconds < _YEAR_10000_S * 1000:
        return None
    text = str(np.datetime64(milliseconds, "ms"))
    if pa.types.is_date(kind):
        return f'"{text[:10]}"'
    return f'"{text}{"Z" if kind.tz else ""}"'


def _json(tree: Tree, text: Any, bounds: bool) -> str:
    parts = []
    for name, node in tree.items():
        if isinstance(node, Leaf):
            value = text(node) if not bounds or _has_bounds(node.kind) else None
        elif bounds and not any(_has_bounds(leaf.kind) for leaf in _leaves(node)):
            value = None
        else:
            value = _json(node, text, bounds)
        if value is not None:
            parts.append(f"{json.dumps(name, ensure_ascii=False)}:{value}")
    return "{" + ",".join(parts) + "}"
