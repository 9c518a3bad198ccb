"""Mutated inputs for the formats, and what must hold of each: the half of `tests.fuzz` that is about records.

json    every entry gives a row or an error, and the same one whether it stands alone or among others; what its
        columns hold is what it says, or is rescued (see `tests.formats.oracle`)
text    the same text, or an error
arrow   rows or an error
ddl     a schema or InvalidConfig, in a few words
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.formats import ArrowFormat, Format, JsonFormat, TextFormat, arrow_schema, settle
from tests.formats.format_support import by_entry, stream
from tests.formats.oracle import SCALARS, accounted, exact

MAX_STREAM_BYTES = 8 << 20
ERROR_MAX = 2000  # characters

TYPED = (
    JsonFormat("a BIGINT, b DOUBLE, c DECIMAL(10, 2), s STRING, l ARRAY<STRUCT<x: INT, y: STRING>>"),
    JsonFormat("a STRING, m MAP<STRING, DOUBLE>, s STRUCT<x: DATE, y: ARRAY<FLOAT>>, b BINARY, t TIMESTAMP"),
    JsonFormat("l ARRAY<STRUCT<" + ", ".join(f"k{i}: INT" for i in range(200)) + ">>, a TINYINT"),
)
STREAMS = ArrowFormat("a BIGINT, b STRING, l ARRAY<INT>, s STRUCT<x: DOUBLE>")

JSON = [
    b'{"a":1,"b":1.5,"c":12.50,"s":"text","l":[{"x":1,"y":"z"},{"x":2}]}',
    b'{"a": 9007199254740993, "b": 18446744073709551615, "c": "1e-210", "s": {"x": "2024-02-29", "y": [1, 1e39]}}',
    b'{"m":{"k":1,"z":null},"s":{"x":null,"y":[]},"b":"aGk=","t":"2024-01-02T03:04:05Z","a":null}',
    b'{"new":{"deep":{"deeper":[[[{"x":1}]]]}},"A":1,"a":2,"\xc5\xbf":3,"s":4}',
    b'{"l":[' + b",".join(b'{"k%d":1}' % i for i in range(60)) + b"]}",
    b'{"l":[' + b"{}," * 400 + b'{}],"a":-0}',
    b'{"s":"\\u00e4\\ud83d\\ude00 \\": null","b":NaN,"c":-Infinity}',
    b"{}",
]
TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"NaN", b"Infinity", b"-0", b"-0.0", b" "),
    *(b"1e-10000000", b"1E400", b"9" * 60, b"9" * 5000, b"0." + b"0" * 60 + b"1", b"1e5", b"\\u0065", b"\\ud800"),
    *(b'"a":', b'"l":[', b'{"x":1}', b'"k":{', b"[[", b"]]", b"\0", b"\xff", b"\n", b"\xe2\x84\xaa", b'"": null,'),
)
DDL = [
    b"id BIGINT, name STRING NOT NULL, tags ARRAY<STRING> COMMENT 'it''s', at DATE",
    b"a STRUCT<x: INT, y: MAP<STRING, ARRAY<DECIMAL(10, 2)>>>, `odd ``name` DOUBLE",
    b"STRUCT<a: INT>",
]
DDL_TOKENS = (b"<", b">", b"(", b")", b",", b":", b"'", b'"', b"`", b"\\", b"ARRAY<", b"MAP<STRING, ", b" NOT NULL")
DDL_TOKENS += (b"STRUCT<a: ", b"DECIMAL(", b"9" * 40, b" COMMENT ", *(kind.encode() for kind in SCALARS))


def streams() -> list[bytes]:
    """One small stream of each kind of column that Arrow has."""
    texts = pa.array(["x", "y", None, "x"])
    columns: list[dict[str, pa.Array]] = [
        {"a": pa.array([1, None, 3, 4]), "b": texts},
        {"b": texts.dictionary_encode(), "a": pa.array([1, 2, 3, 4], pa.uint8())},
        {"b": texts.cast(pa.string_view()), "l": pa.array([[1], None, [], [2, 3]])},
        {"b": texts.cast(pa.large_string()), "l": pa.ListViewArray.from_arrays([0, 1, 0, 2], [2, 1, 3, 0], [1, 2, 3])},
        {"b": pa.RunEndEncodedArray.from_arrays(pa.array([1, 4], pa.int32()), pa.array(["r", "s"]))},
        {"s": pa.array([{"x": 1.5}, None, {"x": None}, {"x": 2.0}]), "a": pa.nulls(4)},
        {"l": pa.FixedSizeListArray.from_arrays(pa.array(range(8)), 2), "a": pa.array([True] * 4)},
        {"a": pa.array(range(1000)), "b": pa.array(["longer text " * 5] * 1000)},
    ]
    return [stream(pa.table(column), kind) for column in columns for kind in (None, "zstd", "lz4")]


def splice(rng: random.Random, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """Tokens put in, doubled, repeated many times, or taken out."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        piece = rng.choice((b"", rng.choice(tokens), data[at:end], rng.choice(tokens) * rng.choice((1, 2, 50, 300))))
        data = data[:at] + piece + data[rng.choice((at, at, min(end, at + 9))) :]
    return data


# What must hold


def check_json(rng: random.Random, entries: list[bytes]) -> bool:
    array = pa.array(entries, pa.binary())
    form: Format = rng.choice(TYPED)
    if rng.randrange(3) == 0:
        evolving = JsonFormat(max_columns=rng.choice((3, 1000)))
        form = settle(evolving, None, evolving.discover(array), ["_sequence"])
    found = by_entry(form.parse(array), len(entries))
    one = rng.randrange(len(entries))
    alone = by_entry(form.parse(array.slice(one, 1)), 1)[0]
    assert str(alone) == str(found[one]), f"{entries[one][:200]!r} alone is {alone}, among others {found[one]}"
    for index, entry in enumerate(entries):
        row = found[index]
        if isinstance(row, dict):
            _check_row(form, entry, row)
        else:
            assert len(row) < ERROR_MAX
    return any(isinstance(row, dict) for row in found.values())


def _check_row(form: Format, entry: bytes, row: dict[str, Any]) -> None:
    source, rest = exact(entry.decode()), exact(row["_rescued_data"] or "{}")
    for field in form.schema:
        if field.name != "_rescued_data":
            kept = accounted(source.get(field.name), field.type, row[field.name], rest.get(field.name))
            assert kept, f"{entry[:200]!r} became {row}"
    for name, value in source.items():
        assert name in form.schema.names or rest.get(name) == value, f"{name!r} of {entry[:200]!r} is lost"


def check_text(rng: random.Random, entries: list[bytes]) -> bool:
    found = by_entry(TextFormat().parse(pa.array(entries, pa.binary())), len(entries))
    for index, entry in enumerate(entries):
        row = found[index]
        assert isinstance(row, str) or row["value"].encode() == entry
    return any(isinstance(row, dict) for row in found.values())


def check_arrow(rng: random.Random, entries: list[bytes]) -> bool:
    array = pa.array(entries, pa.binary())
    form: Format = STREAMS.within(MAX_STREAM_BYTES)
    if rng.randrange(4) == 0:
        evolving = ArrowFormat()
        found = evolving.discover(array)
        if len(found):
            form = settle(evolving, None, found).within(MAX_STREAM_BYTES)
    accepted = 0
    for start, piece in form.pieces(array, 1 << 20, 1000):
        parsed = form.parse(piece)
        assert parsed.entries is not None
        parsed.rows.validate(full=True)
        given_up = {index for index, _ in parsed.bad}
        assert not given_up & set(parsed.entries.tolist())
        assert start + len(piece) <= len(array)
        accepted += len(piece) - len(given_up)
    return accepted > 0


def check_ddl(_: random.Random, entries: list[bytes]) -> bool:
    try:
        schema = arrow_schema(entries[0].decode(errors="replace"))
    except InvalidConfig as error:
        refused = str(error)
    else:
        return len(schema) > 0
    assert len(refused) < ERROR_MAX
    return False


FormatCheck = Callable[[random.Random, list[bytes]], bool]
FORMAT_CHECKS: dict[str, FormatCheck] = {
    "json": check_json,
    "text": check_text,
    "arrow": check_arrow,
    "ddl": check_ddl,
}
FORMAT_CORPUS: dict[str, list[bytes]] = {"json": JSON, "text": JSON, "arrow": streams(), "ddl": DDL}
FORMAT_TOKENS = {"json": TOKENS, "text": TOKENS, "ddl": DDL_TOKENS}


def record(rng: random.Random) -> bytes:
    """A record nobody wrote: random names, values and depth."""
    return json.dumps({_name(rng): _value(rng, 4) for _ in range(rng.randrange(5))}, ensure_ascii=False).encode()


def _name(rng: random.Random) -> str:
    return rng.choice(("a", "b", "c", "s", "l", "m", "x", "A", "ſ", f"k{rng.randrange(2000)}", "n" * 300, "x y"))


def _value(rng: random.Random, depth: int) -> Any:
    if depth and rng.randrange(3) == 0:
        if rng.randrange(2):
            return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        return {_name(rng): _value(rng, depth - 1) for _ in range(rng.randrange(4))}
    numbers = (0, -1, 2**53 + 1, 2**64 - 1, 1.5, 1e300, 5e-324, rng.randrange(-(2**65), 2**65), rng.random())
    return rng.choice((None, True, "text", "12.5", "2024-02-29", "aGk=", '": null', *numbers))
