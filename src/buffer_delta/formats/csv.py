"""The format `csv`: each entry one line, or a block of lines, with given columns.

    CsvFormat("id BIGINT, name STRING, at TIMESTAMP")
    CsvFormat("id BIGINT, name STRING", delimiter="\\t", header=True)       # each entry begins with a line of names

Lines end with LF, CR LF or CR; the last one need not. A field may stand in quotes, and must if it holds the delimiter,
a quote (written twice) or a line break. An unquoted field that is `null_value`, the empty text unless told, is null;
a quoted one is itself. Nothing is trimmed.

What a column takes from a field's text is what `json` takes from a value (see `json.records`): a number as JSON writes
it, `true` or `false`, ISO 8601, base64; a STRING takes any text. Where it takes none, the column is null, and the text
goes to `_rescued_data`, as `{"column": "text"}`; so does a field whose name in the header has no column.

An entry is bad as a whole if a line of it has more or fewer fields than there are columns (or names), if a quote does
not end or does not stand around a whole field, if it is not UTF-8, or if it has no value for a NOT NULL column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.base import RESCUED, Format, Parsed, brief
from buffer_delta.formats.cells import CELLS_PER_BYTE
from buffer_delta.formats.entries import Indices, as_binary
from buffer_delta.formats.json.records import convert_column
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.numbers import MinusZero, Number
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.schemas import arrow_schema, nullable, schema_text

PIECE_BYTES = 1 << 20  # of entries as Python objects at once, which take up to 60 times their bytes
PIECE_ENTRIES = 1 << 14
_DIGITS_MAX = 4000  # Python refuses to read longer whole numbers
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_BREAK = re.compile(r"\r\n|\n|\r")

Line = list["str | None"]


class BadLine(ValueError):
    """The entry is not CSV, or not of these columns."""


@dataclass(frozen=True, kw_only=True)
class CsvOptions(FormatOptions):
    schema: Any = None
    """DDL, StructType or Arrow schema, and then an Arrow schema. It must be given."""
    delimiter: str = ","
    """Between fields: one character."""
    quote: str = '"'
    """Around fields: one character."""
    header: bool = False
    """Every entry begins with a line that names its columns."""
    null_value: str = ""
    """What stands for null where it is not quoted."""
    rescued_data: str = RESCUED
    """The name of that column."""

    def __post_init__(self) -> None:
        if self.schema is None:
            raise InvalidConfig("the format 'csv' needs a schema, like 'id BIGINT, name STRING'", key="schema")
        schema = arrow_schema(self.schema)
        nested = next((f.name for f in schema if pa.types.is_nested(f.type)), None)
        if nested is not None:
            raise InvalidConfig(
                f"the column {nested!r} is an array, a struct or a map, which a field of CSV is not: load it as STRING",
                key="schema",
                value=nested,
            )
        self._check_bool("header")
        for key in ("delimiter", "quote"):
            value = getattr(self, key)
            if not isinstance(value, str) or len(value) != 1 or value in "\r\n":
                raise reject(key, value, "one character, no line break")
        if self.delimiter == self.quote:
            raise reject("quote", self.quote, "another character than the delimiter")
        if not isinstance(self.null_value, str) or {self.delimiter, self.quote, "\r", "\n"} & set(self.null_value):
            raise reject("null_value", self.null_value, "a text without delimiters, quotes and line breaks")
        taken = map(same_name_key, schema.names)
        if not isinstance(self.rescued_data, str) or not self.rescued_data or same_name_key(self.rescued_data) in taken:
            raise reject("rescued_data", self.rescued_data, "a name that no other column has")
        object.__setattr__(self, "schema", schema)


class CsvFormat(Format):
    name: ClassVar[str] = "csv"
    many_rows: ClassVar[bool] = True
    needs_schema: ClassVar[bool] = True
    Options: ClassVar[type[FormatOptions]] = CsvOptions
    options: CsvOptions

    def __init__(self, schema: Any = None, **options: Any) -> None:
        super().__init__(schema=schema, **options)
        self._columns = nullable(self.options.schema)
        self._required = [f.name for f in self.options.schema if not f.nullable]
        self._schema = pa.schema([*self._columns, pa.field(self.options.rescued_data, pa.string())])
        self._lines = _Lines(self.options.delimiter, self.options.quote, self.options.null_value)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def rescued_column(self) -> str | None:
        return self.options.rescued_data

    def settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "schema": schema_text(options.schema),
            "delimiter": options.delimiter,
            "quote": options.quote,
            "header": options.header,
            "null_value": options.null_value,
            "rescued_data": options.rescued_data,
        }

    def parse(self, entries: pa.Array) -> Parsed:
        tables: list[pa.Table] = []
        sources: list[Indices] = []
        bad: list[tuple[int, str]] = []
        for start, piece in self.pieces(as_binary(entries), PIECE_BYTES, PIECE_ENTRIES):
            lines: list[Line] = []
            strays: list[dict[str, str] | None] = []
            source: list[int] = []
            for index, entry in enumerate(piece.to_pylist()):
                try:
                    found, stray = self._rows_of(entry)
                except BadLine as error:
                    bad.append((start + index, brief(str(error))))
                else:
                    lines += found
                    strays += stray
                    source += [start + index] * len(found)
            if lines:
                rows, wrong = self._table(lines, strays)
                at = np.array(source, np.int64)
                if wrong:
                    errors = {source[row]: error for row, error in reversed(wrong)}  # the first of each entry
                    bad += errors.items()
                    kept = ~np.isin(at, list(errors))
                    rows, at = rows.filter(pa.array(kept)), at[kept]
                tables.append(rows)
                sources.append(at)
        rows = pa.concat_tables(tables) if tables else self._schema.empty_table()
        return Parsed(rows, np.concatenate(sources or [np.zeros(0, np.int64)]), sorted(bad))

    def _rows_of(self, entry: bytes) -> tuple[list[Line], list[dict[str, str] | None]]:
        """The fields of each line, by column, and those without a column. Raises BadLine."""
        try:
            text = entry.decode()
        except UnicodeDecodeError as error:
            raise BadLine(f"not UTF-8: {error.reason} at byte {error.start}") from error
        lines = self._lines.read(text)
        names: Sequence[str] = self._columns.names
        if self.options.header:
            names = self._header(lines)
            lines = lines[1:]
        for number, line in enumerate(lines, 1 + self.options.header):
            if len(line) != len(names):
                raise BadLine(f"line {number} has {len(line)} fields, not {len(names)}")
        strays: list[dict[str, str] | None] = [None] * len(lines)
        if self.options.header:
            strays = [self._stray(names, line) for line in lines]
            place = {name: at for at, name in enumerate(names)}
            at = [place.get(name) for name in self._columns.names]
            lines = [[None if i is None else line[i] for i in at] for line in lines]
            if len(lines) * len(at) > max(
                len(at), CELLS_PER_BYTE * len(entry)
            ):  # a line of all columns may be two bytes
                raise BadLine(f"{len(lines):,} lines of {len(at):,} columns are too many for {len(entry):,} bytes")
        return lines, strays

    def _header(self, lines: list[Line]) -> list[str]:
        names = [name or "" for name in lines[0]] if lines else []
        if not names or len(set(names)) < len(names):
            raise BadLine("the header has a name twice" if names else "there is no header")
        return names

    def _stray(self, names: Sequence[str], line: Line) -> dict[str, str] | None:
        known = self._columns.names
        fields = zip(names, line, strict=True)
        return {name: value for name, value in fields if value is not None and name not in known} or None

    def _table(self, lines: list[Line], strays: list[dict[str, str] | None]) -> tuple[pa.Table, list[tuple[int, str]]]:
        """The rows, and what is wrong with those that lack a value which must be there."""
        arrays = []
        wrong: list[tuple[int, str]] = []
        for at, field in enumerate(self._columns):
            texts = [line[at] for line in lines]
            array, misfits = convert_column([_value(text, field.type) for text in texts], field.type)
            arrays.append(array)
            for row in misfits:
                strays[row] = {**(strays[row] or {}), field.name: texts[row] or ""}
            if field.name in self._required and array.null_count:
                missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()
                wrong += [(row, f"no value for the column {field.name!r}, which is NOT NULL") for row in missing]
        rescued = [None if s is None else json.dumps(s, ensure_ascii=False, separators=(",", ":")) for s in strays]
        return pa.Table.from_arrays([*arrays, pa.array(rescued, pa.string())], schema=self._schema), sorted(wrong)


def _value(text: str | None, kind: pa.DataType) -> Any:
    """The text as the value that JSON would have for such a column; itself where it is none, which fits no column."""
    if text is None:
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}.get(text, text)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return text
    if _WHOLE.fullmatch(text):
        return MinusZero() if text == MinusZero.text else int(text) if len(text) <= _DIGITS_MAX else Number(text)
    if _NUMBER.fullmatch(text):
        return Number(text)
    return _CONSTANTS.get(text, text) if pa.types.is_floating(kind) else text


class _Lines:
    """Text to lines of fields."""

    def __init__(self, delimiter: str, quote: str, null_value: str) -> None:
        d, q = re.escape(delimiter), re.escape(quote)
        self._field = re.compile(rf"(?:{q}((?:[^{q}]|{q}{q})*+){q}|([^{d}{q}\r\n]*))({d}|\r\n|\n|\r|\Z)")
        self._delimiter, self._quote, self._null = delimiter, quote, null_value

    def read(self, text: str) -> list[Line]:
        """Raises BadLine."""
        if not text:
            raise BadLine("empty")
        if self._quote not in text:
            lines = _BREAK.split(text)
            if lines and not lines[-1]:
                lines.pop()
            null = self._null
            return [[None if f == null else f for f in line.split(self._delimiter)] for line in lines]
        found: list[Line] = []
        line: Line = []
        at, end = 0, len(text)
        while at < end or line:
            field = self._field.match(text, at)
            if field is None:
                raise BadLine(f"line {len(found) + 1} has a quote that does not stand around a whole field")
            quoted, plain, stop = field.groups()
            if quoted is not None:
                line.append(quoted.replace(self._quote * 2, self._quote))
            else:
                line.append(None if plain == self._null else plain)
            at = field.end()
            if stop != self._delimiter:
                found.append(line)
                line = []
        return found
