"""Records that belong to three tables, and the check that each of them is in its own: once, and as it was produced.

A record's number says everything about it: where in the queue it is, which table it goes to, which bytes it has.
So a loader that dies between the commits of two tables is found out, whichever of them it doubles or leaves out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.crash.delta_files import DeltaFiles
from tests.crash.verdict import Verdict

ENTRIES_PER_BATCH = 5
MAIN, SIDE, DEAD = "table", "side", "dead"
"""The tables: the main one, which a loader commits last and always, the one of a route, the dead letters."""

Position = tuple[int, int]
"""`(_sequence, _index)`."""


def home(number: int) -> str:
    """Coprime steps: every batch is another mixture, and some ranges have nothing for one of the tables."""
    if number % 7 == 3:
        return DEAD
    return SIDE if number % 11 in (0, 4) else MAIN


def entry(number: int) -> bytes:
    whole = json.dumps({"id": number, "kind": home(number)}).encode()
    return whole[:-1] if home(number) == DEAD else whole


def batches(count: int, start: int) -> list[list[bytes]]:
    numbers = iter(range(start, start + count * ENTRIES_PER_BATCH))
    return [[entry(next(numbers)) for _ in range(ENTRIES_PER_BATCH)] for _ in range(count)]


def position(number: int) -> Position:
    return divmod(number, ENTRIES_PER_BATCH)


@dataclass(frozen=True)
class Loaded:
    """What one table holds."""

    through: int
    """The sequence that it says it is at; -1 before the first commit."""
    rows: Sequence[tuple[Position, bytes | int]]
    """Where each row came from, and what is in it: the id of a record, the bytes of a dead letter."""

    @classmethod
    def read(cls, table: DeltaFiles) -> Loaded:
        """`table` has one column besides the provenance."""
        rows = table.rows()
        places = zip(rows["_sequence"].to_pylist(), rows["_index"].to_pylist(), strict=True)
        content = rows[table.columns[0]].to_pylist()
        return cls(max(table.txn.values(), default=-1), list(zip(places, content, strict=True)))


def judge_tables(tables: Mapping[str, Loaded], records: int, *, range_max: int) -> list[str]:
    """Every violation in words. Each table must hold its records of the sequences that it, or the main table, says it
    has, and no others. Tables behind the main one got nothing; none is ahead of it by more than the range in hand."""
    verdict = Verdict()
    places = Counter(place for table in tables.values() for place, _ in table.rows)
    verdict.add("positions that are there more than once", _numbers(places, times_min=2))
    for name, table in tables.items():
        through = max(table.through, tables[MAIN].through)
        promised = {n for n in range(min(records, (through + 1) * ENTRIES_PER_BATCH)) if home(n) == name}
        found = {_number(place): content for place, content in table.rows}
        verdict.add(f"{name}, at {through}: lost", sorted(promised - found.keys()))
        verdict.add(f"{name}, at {through}: not to be there", sorted(found.keys() - promised))
        beyond = [place for place, _ in table.rows if place[0] > table.through]
        verdict.add(f"{name}, at {table.through}: rows beyond it", sorted(map(_number, beyond)))
        verdict.add(f"{name}: not as produced", [n for n in promised & found.keys() if found[n] != _content(n)])
    ends = {name: table.through for name, table in tables.items()}
    if max(ends.values()) - ends[MAIN] > range_max:
        verdict.violations.append(f"tables are more than one range of {range_max} batches ahead: {ends}")
    return verdict.violations


def judge_all_loaded(tables: Mapping[str, Loaded], records: int) -> list[str]:
    """Besides `judge_tables`: nothing is left to do, and the main table says so."""
    verdict = Verdict()
    last = records // ENTRIES_PER_BATCH - 1
    ends = {name: table.through for name, table in tables.items()}
    if ends[MAIN] != last or max(ends.values()) != last:
        verdict.violations.append(f"the queue ended at {last}, the tables say {ends}")
    there = {place for table in tables.values() for place, _ in table.rows}
    verdict.add("lost", [n for n in range(records) if position(n) not in there])
    return verdict.violations


def _number(place: Position) -> int:
    sequence, index = place
    return sequence * ENTRIES_PER_BATCH + index


def _numbers(places: Counter[Position], times_min: int) -> list[int]:
    return sorted(_number(place) for place, times in places.items() if times >= times_min)


def _content(number: int) -> bytes | int:
    return entry(number) if home(number) == DEAD else number


def positions(records: int) -> Iterator[Position]:
    return map(position, range(records))
