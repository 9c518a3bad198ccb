"""The format `keyvalue`: each entry a key and a value, as `buffer migrate` writes them. See `buffer.codec.keyvalue`.

    KeyValueFormat()                                          # key BINARY, value BINARY
    KeyValueFormat(key="text", value="json")                  # key STRING, value STRING

    binary   the bytes as they are
    text     UTF-8
    json     UTF-8 that is one JSON value, kept as it was written: no number is rounded, no field is dropped. The same
             strictness as the format `json`: no name twice in an object, at most 200 levels

An entry that is no pair is bad. A key or a value that is not what its column holds goes to the rescued column, as
`{"value": "<base64>"}`, and the column is null; with `on_mismatch="dead_letter"` the entry is bad.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer.codec.keyvalue import HEAD, VERSION, pair_problem
from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.base import RESCUED, Format, Parsed, brief
from buffer_delta.formats.entries import Indices, as_binary, invalid_utf8, offsets_of
from buffer_delta.formats.json.reading import BadRecord, load_value
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.options import FormatOptions

KINDS = ("binary", "text", "json")
COLUMNS = ("key", "value")


@dataclass(frozen=True, kw_only=True)
class KeyValueOptions(FormatOptions):
    key: str = "binary"
    """`binary`, `text` or `json`; `value` alike."""
    value: str = "binary"
    rescued_data: str | None = RESCUED
    """Renames the column for what does not fit; None leaves it out, and then nothing may be rescued."""
    on_mismatch: str = "rescue"
    """`rescue`, or `dead_letter`: the entry is bad."""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            self._check_choice(name, KINDS)
        self._check_choice("on_mismatch", ("rescue", "dead_letter"))
        rescued = self.rescued_data
        if rescued is not None and not (isinstance(rescued, str) and rescued):
            raise reject("rescued_data", rescued, "the name of a column; None leaves it out")
        if rescued is not None and same_name_key(rescued) in COLUMNS:
            raise reject("rescued_data", rescued, "another name than 'key' and 'value', which are columns")
        if rescued is None and self.on_mismatch == "rescue":
            raise InvalidConfig(
                "rescued_data=None leaves no column to rescue into; set on_mismatch='dead_letter' too, or keep it",
                key="rescued_data",
                value=None,
            )


class KeyValueFormat(Format):
    name: ClassVar[str] = "keyvalue"
    Options: ClassVar[type[FormatOptions]] = KeyValueOptions
    options: KeyValueOptions

    @property
    def schema(self) -> pa.Schema:
        kinds = {"binary": pa.binary(), "text": pa.string(), "json": pa.string()}
        fields = [(name, kinds[getattr(self.options, name)]) for name in COLUMNS]
        rescued = self.options.rescued_data
        return pa.schema([*fields, *([(rescued, pa.string())] if rescued is not None else [])])

    @property
    def rescued_column(self) -> str | None:
        return self.options.rescued_data

    def settings(self) -> dict[str, Any]:
        """Plans in ledgers hold the digest of it: for the same options it must never change."""
        options = self.options
        return {
            "key": options.key,
            "value": options.value,
            "rescued_data": options.rescued_data,
            "on_mismatch": options.on_mismatch,
        }

    def parse(self, entries: pa.Array) -> Parsed:
        entries = as_binary(entries)
        cut = _cut(entries)
        problems = {name: _PROBLEMS[getattr(self.options, name)](cut.columns[name]) for name in COLUMNS}
        bad = dict(cut.bad)
        if self.options.on_mismatch == "dead_letter":
            for name, found in problems.items():
                bad |= {int(cut.pairs[row]): brief(f"the {name}: {error}") for row, error in found.items()}
        kept = np.flatnonzero(~np.isin(cut.pairs, list(bad)))
        columns = [self._column(name, cut.columns[name], problems[name]) for name in COLUMNS]
        if self.options.rescued_data is not None:
            columns.append(_rescued(cut, problems))
        rows = pa.Table.from_arrays(columns, schema=self.schema)
        if len(kept) == len(entries):
            return Parsed(rows, None)
        return Parsed(rows.take(pa.array(kept)), cut.pairs[kept], sorted(bad.items()))

    def _column(self, name: str, column: pa.BinaryArray, problems: dict[int, str]) -> pa.Array:
        if problems:
            fits = np.ones(len(column), bool)
            fits[list(problems)] = False
            column = column.take(pa.array(np.arange(len(column)), mask=~fits))
        return column if getattr(self.options, name) == "binary" else column.cast(pa.string())


# Cutting


@dataclass(frozen=True)
class _Cut:
    """Entries as pairs."""

    pairs: Indices
    """The entry that each pair came from."""
    columns: dict[str, pa.BinaryArray]
    bad: list[tuple[int, str]]


def _cut(entries: pa.BinaryArray) -> _Cut:
    """Find keys and values in the bytes of the entries, all heads at once."""
    offsets = offsets_of(entries).astype(np.int64)
    values = entries.buffers()[2] if offsets[-1] > offsets[0] else None
    data = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    starts, ends = offsets[:-1], offsets[1:]
    whole = ends - starts >= HEAD.size
    at = starts[whole]
    lengths = np.zeros(len(at), np.int64)
    for byte in range(4):  # little-endian, behind the version
        lengths |= data[at + 1 + byte].astype(np.int64) << (8 * byte)
    fits = (data[at] == VERSION) & (at + HEAD.size + lengths <= ends[whole])
    good = np.flatnonzero(whole)[fits]
    key_starts = starts[good] + HEAD.size
    value_starts = key_starts + lengths[fits]
    bad = np.setdiff1d(np.arange(len(entries)), good)
    return _Cut(
        good,
        {"key": _slices(data, key_starts, value_starts), "value": _slices(data, value_starts, ends[good])},
        [(int(index), _problem(data, int(starts[index]), int(ends[index]))) for index in bad],
    )


def _slices(data: Any, starts: Indices, ends: Indices) -> pa.BinaryArray:
    """The bytes between, as an array of their own."""
    lengths = ends - starts
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    steps = np.zeros(len(data) + 1, np.int8)  # up where a slice begins, down where it ends: they do not overlap
    steps[starts[lengths > 0]] += 1
    steps[ends[lengths > 0]] -= 1
    kept = data[np.cumsum(steps[:-1], dtype=np.int8).astype(bool)]
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(kept)]
    )


def _problem(data: Any, start: int, end: int) -> str:
    problem = pair_problem(data[start : min(end, start + HEAD.size)].tobytes(), end - start)
    assert problem is not None, "it was found to be no pair"
    return problem


# What a column holds


def _no_problems(_column: pa.BinaryArray) -> dict[int, str]:
    return {}


def _text_problems(column: pa.BinaryArray) -> dict[int, str]:
    return dict(invalid_utf8(column))


def _json_problems(column: pa.BinaryArray) -> dict[int, str]:
    problems: dict[int, str] = {}
    for row, entry in enumerate(column):
        try:
            load_value(entry.as_py())
        except BadRecord as error:
            problems[row] = str(error)
    return problems


_PROBLEMS: dict[str, Callable[[pa.BinaryArray], dict[int, str]]] = {
    "binary": _no_problems,
    "text": _text_problems,
    "json": _json_problems,
}


def _rescued(cut: _Cut, problems: dict[str, dict[int, str]]) -> pa.Array:
    texts: dict[int, dict[str, str]] = {}
    for name, found in problems.items():
        for row in found:
            texts.setdefault(row, {})[name] = base64.b64encode(cut.columns[name][row].as_py()).decode()
    if not texts:
        return pa.nulls(len(cut.pairs), pa.string())
    return pa.array([json.dumps(texts[row]) if row in texts else None for row in range(len(cut.pairs))], pa.string())
