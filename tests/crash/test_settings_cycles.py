"""The judge of loaders whose settings change must find every kind of wrong, and accept what settings may decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.crash.loaded import DEAD, ENTRIES_PER_BATCH, MAIN, SIDE, Loaded, entry, home, position
from tests.crash.loader_cycles import LoaderCycles, Run
from tests.crash.settings_cycles import Settings, SettingsCycles, judge_anywhere

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


def test_should_roll_back_once_for_a_refused_loader_and_forget_no_settings(tmp_path: Path, monkeypatch: Any) -> None:
    """Whichever of them began the range must come round again, however often its end is looked at."""
    refused = {"error": "RouteChanged"}
    monkeypatch.setattr(LoaderCycles, "_start", lambda *_args, **_options: SimpleNamespace(ended={}))
    cycles = SettingsCycles(tmp_path, 1, lambda _text: None)
    start: Callable[[Any], Run] = cycles._start
    tried: list[Settings] = []
    for _ in range(3):
        cycles._change()
    known = {*cycles._before, cycles._settings}
    for _ in range(len(known)):
        run = start(None)
        tried.append(cycles._settings)
        run.ended.update(refused)
        cycles._check_end(run)
        cycles._check_end(run)
    stranger: Any = SimpleNamespace(ended=refused)  # one that woke up, with settings of long ago
    start(None)
    cycles._check_end(stranger)
    assert set(tried) == known
    assert {*cycles._before, cycles._settings} == known
    assert cycles.changes["rolled back"] == len(known)
    assert not cycles.violations
