"""The judge of loaders whose settings change must find every kind of wrong, and accept what settings may decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.crash.loaded import DEAD, ENTRIES_PER_BATCH, MAIN, SIDE, Loaded, entry, home, position
from tests.crash.settings_cycles import judge_anywhere

RECORDS = 8 * ENTRIES_PER_BATCH
JOINED = 4 * ENTRIES_PER_BATCH  # from here on there were three tables


def _tables() -> dict[str, Loaded]:
    where = {n: home(n) if n >= JOINED else MAIN for n in range(RECORDS)}

    def content(number: int) -> Any:
        if home(number) != DEAD:
            return number
        return entry(number) if where[number] == DEAD else None

    return {
        name: Loaded(7, [(position(n), content(n)) for n in range(RECORDS) if where[n] == name])
        for name in (MAIN, SIDE, DEAD)
    }


def test_should_accept_records_in_their_own_table_or_in_the_main_one() -> None:
    assert judge_anywhere(_tables(), RECORDS) == []


def test_should_report_what_is_lost_doubled_elsewhere_or_changed() -> None:
    tables = _tables()
    main, side, dead = tables[MAIN], tables[SIDE], tables[DEAD]
    first, *rest = main.rows
    assert judge_anywhere({**tables, MAIN: replace(main, rows=rest)}, RECORDS) == ["lost: [0]"]
    moved: Any = (dead.rows[0][0], None)
    number = moved[0][0] * ENTRIES_PER_BATCH + moved[0][1]
    twice = {**tables, MAIN: replace(main, rows=[*main.rows, moved])}
    assert judge_anywhere(twice, RECORDS) == [f"positions that are there more than once: [{number}]"]
    changed = {**tables, MAIN: replace(main, rows=[(first[0], 7), *rest])}
    assert judge_anywhere(changed, RECORDS) == ["table: not as produced: [0]"]
    elsewhere = {**tables, DEAD: replace(dead, rows=dead.rows[1:]), SIDE: replace(side, rows=[*side.rows, moved])}
    assert judge_anywhere(elsewhere, RECORDS) == [f"side: not to be there: [{number}]"]
