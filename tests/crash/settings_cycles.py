"""Loaders whose configuration changes from life to life: tables join and leave, schemas change and are rolled back.

As in `loader_cycles` each one is killed, at a step, between steps, or stopped and woken beside its successor, which has
other settings by then. Every record must be in one table, once, as it was produced: in its own where the range was
begun with that one, else in the main table. A loader may be refused (`RouteChanged`) where a range was begun with
other settings; then the settings are rolled back, as the message says, until one of those before can go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.loaded import DEAD, ENTRIES_PER_BATCH, MAIN, SIDE, Loaded, entry, home, position
from tests.crash.loader_cycles import LoaderCycles, Run
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict

CHANGE = 0.7  # how likely the settings change before a life
SCHEMAS = ("id BIGINT, kind STRING", "id BIGINT, kind STRING, more STRING", None)
"""The last one: the columns follow the data."""


@dataclass(frozen=True)
class Settings:
    has_side: bool = False
    has_dead_letters: bool = False
    schema: str | None = SCHEMAS[0]

    def config(self, folder: Path) -> dict[str, Any]:
        config: dict[str, Any] = {"merge_schema": True}
        config["format"] = "json" if self.schema is None else {"type": "json", "schema": self.schema}
        if self.has_side:
            config |= {"route_by": "kind", "routes": {SIDE: str(folder / SIDE)}}
        if self.has_dead_letters:
            config["dead_letters"] = str(folder / DEAD)
        return config


class SettingsCycles(LoaderCycles):
    """Cycles of produce, change the settings, load, kill -9."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None], *, writer: str = "auto") -> None:
        super().__init__(folder, seed, tell, writer=writer)
        self._settings = Settings()
        self._before: list[Settings] = []
        """What to roll back to, the newest last, each once."""
        self._is_refused = False
        """The last loader was."""
        self._stuck_at = -2
        """Where the main table was when one was refused: as long as it is there, it is no time for other changes."""
        self._run: Run | None = None
        self.changes: Counter[str] = Counter()

    @property
    def config(self) -> dict[str, Any]:
        base = super().config
        for key in ("route_by", "routes", "dead_letters", "format"):
            base.pop(key, None)
        return base | self._settings.config(self._folder)

    def _cycle(self) -> None:
        if self._chance.random() < CHANGE and self._committed() > self._stuck_at:
            self._change()
        super()._cycle()

    def _change(self) -> None:
        self._before = [*(s for s in self._before if s != self._settings), self._settings]
        self._settings = Settings(
            self._chance.random() < 0.5, self._chance.random() < 0.5, self._chance.choice(SCHEMAS)
        )
        self.changes["changed"] += 1

    def _start(self, loader: Worker, **options: Any) -> Run:
        run = self._run = super()._start(loader, **options)
        self._is_refused = False
        self._tell(f"  with {self._settings}, {options or 'no step to die at'}")
        return run

    def _check_end(self, run: Run) -> None:
        if run.ended.get("error") != "RouteChanged" or not self._before:
            super()._check_end(run)
        elif run is self._run and not self._is_refused:  # once for each, and not for one that woke up with others
            self._is_refused = True
            self._stuck_at = self._committed()
            self._before.insert(0, self._settings)
            self._settings = self._before.pop()
            self.changes["rolled back"] += 1

    def _finish(self, second_opinion: bool) -> None:
        for _ in range(len(self._before) + 1):  # until one of the settings finishes what was begun
            self._follow_one()
            if not self._is_refused:
                break
        super()._finish(second_opinion)

    def _follow_one(self) -> None:
        self._wake_zombie()
        self._starts_max += 1
        loader = self._next()
        run = self._start(loader)
        self._follow(run)
        self.check_alive(run)
        loader.kill()

    def _judge(self, tables: Mapping[str, Loaded]) -> list[str]:
        return judge_anywhere(tables, self.records)

    def _judge_end(self, tables: Mapping[str, Loaded]) -> list[str]:
        last = self.records // ENTRIES_PER_BATCH - 1
        through = tables[MAIN].through
        return [] if through == last else [f"the queue ended at {last}, the main table says {through}"]

    def run(self, cycles: int) -> Verdict:
        verdict = super().run(cycles)
        told = ", ".join(f"{how} {n} times" for how, n in self.changes.items())
        verdict.text = f"{verdict.text}; settings {told or 'never changed'}"
        return verdict


def judge_anywhere(tables: Mapping[str, Loaded], records: int) -> list[str]:
    """Every record that the main table says is loaded is somewhere, once; in its own table or in the main one."""
    verdict = Verdict()
    places = Counter(place for table in tables.values() for place, _ in table.rows)
    verdict.add(
        "positions that are there more than once", sorted(map(_number, (p for p, n in places.items() if n > 1)))
    )
    promised = range(min(records, (tables[MAIN].through + 1) * ENTRIES_PER_BATCH))
    verdict.add("lost", [n for n in promised if position(n) not in places])
    for name, table in tables.items():
        found = [(_number(place), content) for place, content in table.rows]
        verdict.add(f"{name}: not to be there", [n for n, _ in found if name not in (MAIN, home(n))])
        verdict.add(f"{name}: not as produced", [n for n, content in found if content != _content(n, name)])
    return verdict.violations


def _content(number: int, table: str) -> bytes | int | None:
    """A record that does not parse has no id in the main table; there it is rescued as a whole."""
    if home(number) == DEAD:
        return entry(number) if table == DEAD else None
    return number


def _number(place: tuple[int, int]) -> int:
    return place[0] * ENTRIES_PER_BATCH + place[1]
