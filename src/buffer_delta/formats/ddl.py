"""Spark's schema language (`id BIGINT, tags ARRAY<STRING>, at DATE NOT NULL`) to an Arrow schema, without Spark.

A configuration can then be checked before any JVM runs. Types that have no place in JSON or in Delta's Arrow
exchange (INTERVAL, OBJECT) are refused by name; where VARIANT may be is for `schemas` to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.variant import VARIANT

T = TypeVar("T")

TIMESTAMP = pa.timestamp("us", "UTC")
DECIMAL_PRECISION_MAX = 38  # Spark's and Delta's
NESTED_MAX = 60
"""Levels of types within types of a given schema. Rows travel in Arrow's messages, which take 64."""
_SHOWN_MAX = 200  # characters of a schema in a message
_DIGITS = re.compile(r"[0-9]{1,9}")

_PRIMITIVES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "VARIANT": VARIANT,
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_TEXTS = ("CHAR", "CHARACTER", "VARCHAR")
ALLOWED = ", ".join([*_PRIMITIVES, "DECIMAL(p, s)", "ARRAY<…>", "MAP<STRING, …>", "STRUCT<name: type, …>"])

_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([^\s<>(),:`'\"]+)|(.))", re.DOTALL
)


def parse_ddl(text: str) -> pa.Schema:
    """The schema that the text describes. Raises InvalidConfig that says where it stops making sense."""
    parser = _Parser(text)
    if parser.peek().upper() == "STRUCT" and parser.peek(1) == "<":
        kind = parser.type()
        parser.expect("")
        return pa.schema(list(kind))
    fields = parser.separated(parser.field)
    parser.expect("")
    return pa.schema(fields)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._at = 0
        self._depth = 0
        for token in _TOKEN.finditer(text.strip()):
            if token[4] in ("'", '"', "`"):  # going on would look for its end again and again
                raise self.error("a quote without an end")
            self._tokens.append(token[0].lstrip())

    def peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead] if self._at + ahead < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek().upper() == token:
            self._at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if self.take().upper() != token:
            self._at -= 1
            raise self.error(f"expected {repr(token) if token else 'the end'}")

    def error(self, what: str) -> InvalidConfig:
        where = f"before {_shown(self.peek())!r}" if self.peek() else "at the end"
        return InvalidConfig(
            f"the schema {_shown(self._text)!r} is not valid: {what} {where}; write it like "
            "'id BIGINT, name STRING, tags ARRAY<STRING>'",
            key="schema",
            value=self._text,
        )

    def separated(self, item: Callable[[], pa.Field]) -> list[pa.Field]:
        items = [item()]
        while self.accept(","):
            items.append(item())
        seen: set[str] = set()
        for name in (one.name for one in items):
            if same_name_key(name) in seen:
                raise self.error(f"the column {_shown(name)!r} is there twice (Spark does not tell cases apart)")
            seen.add(same_name_key(name))
        return items

    def field(self) -> pa.Field:
        name = self.take()
        if not name or (len(name) == 1 and name in "<>(),:'\"`"):
            self._at -= 1
            raise self.error("expected a column name")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        self.accept(":")
        kind = self.type()
        nullable = True
        if self.accept("NOT"):
            self.expect("NULL")
            nullable = False
        if self.accept("COMMENT"):
            if self.peek()[:1] not in ("'", '"'):
                raise self.error("expected a quoted comment")
            while self.peek()[:1] in ("'", '"') and self.peek():  # 'it''s' is two strings side by side
                self.take()
        return pa.field(name, kind, nullable=nullable)

    def type(self) -> pa.DataType:
        word = self.take().upper()
        if word == "ARRAY":
            return pa.list_(self.inside(self.type))
        if word == "MAP":
            return self.inside(self.map)
        if word == "STRUCT":
            return pa.struct(self.inside(lambda: self.separated(self.field)))
        if word in _DECIMALS:
            return self.decimal()
        if word in _TEXTS:
            self.numbers(1)
            return pa.string()
        if word in _PRIMITIVES:
            return _PRIMITIVES[word]
        self._at -= 1
        raise self.error(f"unknown type (allowed: {ALLOWED})")

    def inside(self, item: Callable[[], T]) -> T:
        self.expect("<")
        self._depth += 1
        if self._depth > NESTED_MAX:
            raise self.error(f"types within types more than {NESTED_MAX} levels deep")
        found = item()
        self._depth -= 1
        self.expect(">")
        return found

    def map(self) -> pa.DataType:
        key = self.type()
        self.expect(",")
        return pa.map_(key, self.type())

    def decimal(self) -> pa.DataType:
        given = self.numbers(2) if self.peek() == "(" else [10]
        precision, scale = (*given, 0)[:2]
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
            raise self.error(f"DECIMAL({precision}, {scale}) is out of range")
        return pa.decimal128(precision, scale)

    def numbers(self, most: int) -> list[int]:
        self.expect("(")
        found: list[int] = []
        while len(found) < most:
            if not _DIGITS.fullmatch(self.peek()):
                raise self.error("expected a number")
            found.append(int(self.take()))
            if not self.accept(","):
                break
        self.expect(")")
        return found
