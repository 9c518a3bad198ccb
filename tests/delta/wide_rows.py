"""One wide table of random columns, from a seed: a Spark job costs the same for one column and for two hundred.

Every type comes several times, alone and inside of structs, lists and maps, with few values and with hard ones.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

_EXACT = decimal.Context(prec=40)
_EPOCH = dt.datetime(1970, 1, 1)
_EDGE = [
    "a",
    "Z",
    "é",
    "\x00",
    "\x7f",
    "\x80",
    "\ud7ff",
    "\ue000",
    "\ufffd",
    "\uffff",
    "\U00010000",
    "\U0010fffe",
    "\U0010ffff",
]
_DOUBLES = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, 1e-7, 1e22, 1e300, 5e-324, 0.1, 123456789.125, -2.5]
_FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, 0.125, 3.5, -2.5, 2.0**-149, 2.0**127, 16777216.0]

Make = Callable[[random.Random], Any]


def _whole(bits: int) -> Make:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda rng: rng.choice([low, high, 0, rng.randint(low, high), rng.randint(-3, 3)])


def _text(rng: random.Random) -> str:
    head = rng.choice(["", "", "a", "é", "\U0010ffff", "\U0001f600"]) * rng.choice([1, 15, 16, 30, 31, 32, 33, 64])
    return head + "".join(rng.choice(_EDGE) for _ in range(rng.choice([0, 1, 2, 3, 40])))


def _moment(rng: random.Random) -> dt.datetime:
    wide = rng.randint(-62_135_596_800_000_000, 253_402_300_799_999_999)
    return _EPOCH + dt.timedelta(microseconds=rng.choice([wide, rng.randint(-5_000, 5_000), 0, -1]))


def _decimal(precision: int, scale: int) -> Make:
    top = 10**precision - 1
    return lambda rng: Decimal(rng.choice([0, 1, top, -top, rng.randint(-top, top)])).scaleb(-scale, context=_EXACT)


FLAT: list[tuple[pa.DataType, Make]] = [
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    *((kind, _whole(kind.bit_width)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    (pa.float32(), lambda rng: rng.choice(_FLOATS)),
    (pa.float64(), lambda rng: rng.choice(_DOUBLES)),
    (pa.string(), _text),
    (pa.binary(), lambda rng: rng.randbytes(rng.choice([0, 1, 5]))),
    (pa.date32(), lambda rng: dt.date.fromordinal(rng.choice([1, 3_652_059, rng.randint(1, 3_652_059), 719_163]))),
    (pa.timestamp("us", "UTC"), lambda rng: _moment(rng).replace(tzinfo=dt.UTC)),
    (pa.timestamp("us"), _moment),
    *((pa.decimal128(*size), _decimal(*size)) for size in ((5, 2), (9, 9), (18, 0), (19, 4), (38, 10))),
]


def column(rng: random.Random, kind: pa.DataType, make: Make, rows: int) -> pa.Array:
    """Some are all null, some have no null, some only a few different values."""
    null_share = rng.choice([0.0, 0.0, 0.3, 0.8, 1.0])
    pool = [make(rng) for _ in range(rng.choice([1, 2, rows, rows]))]
    return pa.array([None if rng.random() < null_share else rng.choice(pool) for _ in range(rows)], kind)


def nested(rng: random.Random, depth: int) -> tuple[pa.DataType, Make]:
    kind, make = rng.choice(FLAT) if depth == 0 else nested(rng, depth - 1)
    match rng.choice(["struct", "struct", "struct", "list", "map"]):
        case "struct":
            other, make_other = rng.choice(FLAT)
            return pa.struct([("x", kind), ("Y_é", other)]), lambda rng: {
                "x": None if rng.random() < 0.2 else make(rng),
                "Y_é": None if rng.random() < 0.2 else make_other(rng),
            }
        case "list":
            return pa.list_(pa.field("element", kind)), lambda rng: [make(rng) for _ in range(rng.randint(0, 3))]
        case _:
            return pa.map_(pa.string(), kind), lambda rng: [(f"k{n}", make(rng)) for n in range(rng.randint(0, 3))]


def wide_table(seed: int, rows: int = 12, each: int = 5, nested_columns: int = 40) -> pa.Table:
    rng = random.Random(seed)
    kinds = [kind for kind in FLAT for _ in range(each)] + [
        nested(rng, rng.choice([0, 0, 1, 2])) for _ in range(nested_columns)
    ]
    rng.shuffle(kinds)
    return pa.table({f"c{at}": column(rng, kind, make, rows) for at, (kind, make) in enumerate(kinds)})
