"""The judge of the tables must find every kind of wrong: a check that cannot fail proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.loaded import (
    DEAD,
    ENTRIES_PER_BATCH,
    MAIN,
    SIDE,
    Loaded,
    batches,
    entry,
    home,
    judge_all_loaded,
    judge_tables,
    position,
)

RECORDS = 8 * ENTRIES_PER_BATCH
RANGE_MAX = 3


def _table(name: str, through: int) -> Loaded:
    numbers = [n for n in range((through + 1) * ENTRIES_PER_BATCH) if home(n) == name]
    return Loaded(through, [(position(n), entry(n) if name == DEAD else n) for n in numbers])


def _tables(main: int = 7, side: int = 7, dead: int = 7) -> dict[str, Loaded]:
    return {MAIN: _table(MAIN, main), SIDE: _table(SIDE, side), DEAD: _table(DEAD, dead)}


def _judge(tables: dict[str, Loaded]) -> list[str]:
    return judge_tables(tables, RECORDS, range_max=RANGE_MAX)


def test_should_have_work_for_every_table() -> None:
    assert {home(n) for n in range(RECORDS)} == {MAIN, SIDE, DEAD}
    assert batches(2, 10) == [[entry(n) for n in range(10, 15)], [entry(n) for n in range(15, 20)]]


@pytest.mark.parametrize("ends", [(-1, -1, -1), (7, 7, 7), (4, 7, 7), (4, 7, 4)])
def test_should_accept_tables_that_hold_what_they_say(ends: tuple[int, int, int]) -> None:
    assert _judge(_tables(*ends)) == []


@pytest.mark.parametrize("name", [MAIN, SIDE, DEAD])
def test_should_report_a_row_that_is_lost_doubled_or_changed(name: str) -> None:
    tables = _tables()
    first, *rest = tables[name].rows
    number = first[0][0] * ENTRIES_PER_BATCH + first[0][1]
    lost = {**tables, name: replace(tables[name], rows=rest)}
    assert _judge(lost) == [f"{name}, at 7: lost: [{number}]"]
    assert judge_all_loaded(lost, RECORDS) == [f"lost: [{number}]"]
    doubled = {**tables, name: replace(tables[name], rows=[first, first, *rest])}
    assert _judge(doubled) == [f"positions that are there more than once: [{number}]"]
    changed = {**tables, name: replace(tables[name], rows=[(first[0], b"?"), *rest])}
    assert _judge(changed) == [f"{name}: not as produced: [{number}]"]


def test_should_report_a_record_in_the_wrong_table_or_in_two() -> None:
    tables = _tables()
    dead = tables[DEAD].rows[0]
    also = {**tables, MAIN: replace(tables[MAIN], rows=[*tables[MAIN].rows, dead])}
    assert _judge(also) == [
        "positions that are there more than once: [3]",
        "table, at 7: not to be there: [3]",
    ]


def test_should_accept_a_table_that_got_nothing_since() -> None:
    tables = _tables(5, 5, 5)
    last = max(place[0] for place, _ in tables[DEAD].rows)
    tables[DEAD] = replace(tables[DEAD], through=last)
    assert last < 5
    assert _judge(tables) == judge_all_loaded(tables, 6 * ENTRIES_PER_BATCH) == []


def test_should_report_what_a_table_lacks_that_is_behind_the_main_one() -> None:
    """The main table commits last: what it has, all have."""
    assert [line.partition(":")[0] for line in _judge(_tables(dead=3))] == ["dead, at 7"]


def test_should_report_rows_that_a_table_does_not_own_up_to() -> None:
    tables = _tables()
    tables[SIDE] = replace(tables[SIDE], through=6)
    assert _judge(tables) == ["side, at 6: rows beyond it: [37]"]


def test_should_report_tables_that_are_too_far_ahead_or_not_at_the_end() -> None:
    tables = _tables(main=3)
    assert _judge(tables) == ["tables are more than one range of 3 batches ahead: {'table': 3, 'side': 7, 'dead': 7}"]
    ended, lost = judge_all_loaded(tables, RECORDS)
    assert "the queue ended at 7, the tables say" in ended
    assert lost.startswith("lost: ")
    assert judge_all_loaded(_tables(), RECORDS) == []
