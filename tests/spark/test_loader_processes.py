"""Loaders in processes of their own: stopped, woken and killed at every step, on real Delta tables."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from tests.crash.delta_files import DeltaFiles
from tests.spark.processes import LoaderProcess
from tests.spark.queues import numbered, produce

pytestmark = pytest.mark.spark

ENTRIES_PER_BATCH = 10  # of `numbered`

Config = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoaderProcess, LoaderProcess]]:
    """Two loader processes that live through the tests that do not kill them: a Spark start is slow."""
    processes = [LoaderProcess(tmp_path_factory.mktemp("pair")) for _ in range(2)]
    try:
        for process in processes:
            process.wait_for("ready")
        yield processes[0], processes[1]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    def config(**settings: Any) -> dict[str, Any]:
        return {
            "store": str(tmp_path / "queue"),
            "table": str(tmp_path / "table"),
            "format": {"type": "json", "schema": "id BIGINT"},
            "max_batches_per_commit": 3,
            "gc_enabled": False,
            **settings,
        }

    return config


def files_of(table: Path, *columns: str) -> DeltaFiles:
    """Read by hand: these tests need no Spark besides the loaders' own."""
    files = DeltaFiles(table, columns)
    files.refresh()
    assert files.violations == []
    assert files.repeated_positions() == 0
    return files


def assert_exactly_once(table: Path, records: int) -> None:
    assert sorted(files_of(table, "id").rows()["id"].to_pylist()) == list(range(records))


def is_bad(record: int) -> bool:
    return record % 7 == 3


def with_bad_ones(batches: int, start: int) -> list[list[bytes]]:
    """As `numbered`, but some of the records are cut off and must become dead letters."""
    numbers = count(start)
    return [[e[:-1] if is_bad(next(numbers)) else e for e in entries] for entries in numbered(batches, start=start)]


def assert_each_where_it_belongs(table: Path, dead_letters: Path, records: int) -> None:
    """Every record once, in one of the two tables, and both tables at the end of the queue."""
    good, dead = files_of(table, "id"), files_of(dead_letters, "bytes")
    assert good.rows()["id"].to_pylist() == [n for n in range(records) if not is_bad(n)]
    assert dead.rows()["bytes"].to_pylist() == [b'{"id": %d' % n for n in range(records) if is_bad(n)]
    places = [(row["_sequence"], row["_index"]) for files in (good, dead) for row in files.rows().to_pylist()]
    assert sorted(places) == [divmod(n, ENTRIES_PER_BATCH) for n in range(records)]
    assert list(good.txn.values()) == [records // ENTRIES_PER_BATCH - 1]
    assert dead.txn == good.txn


def appended(config: dict[str, Any]) -> str:
    return f"appended {config['table']}"


def committed(config: dict[str, Any]) -> str:
    return f"committed {config['table']}"


def test_should_load_once_when_a_zombie_wakes_after_its_plan(
    pair: tuple[LoaderProcess, LoaderProcess], tmp_path: Path, config: Config
) -> None:
    """A planned 0..2 and stalls before its commit; B takes over, meets a longer queue, commits; A goes on."""
    a, b = pair
    produce(tmp_path / "queue", numbered(3))
    a.start(config(), pause_at=["planned"])
    a.wait_for(at="planned")
    a.freeze()
    produce(tmp_path / "queue", numbered(4, start=30))
    b.start(config(max_batches_per_commit=10))
    done = b.finish()["done"]
    assert (done["first"], done["last"]) == (3, 6), "B replays A's plan 0..2, then goes on"
    a.thaw()
    a.go()
    assert a.finish()["error"] == "Fenced"
    assert_exactly_once(tmp_path / "table", 70)


def test_should_load_once_when_the_zombie_commits_first(
    pair: tuple[LoaderProcess, LoaderProcess], tmp_path: Path, config: Config
) -> None:
    """B has read A's plan and stalls in turn; A wakes and commits the range; B commits it again: skipped."""
    a, b = pair
    produce(tmp_path / "queue", numbered(3))
    a.start(config(), pause_at=["decoded"])
    a.wait_for(at="decoded")
    a.freeze()
    produce(tmp_path / "queue", numbered(2, start=30))
    b.start(config(max_batches_per_commit=10), pause_at=["decoded"])
    b.wait_for(at="decoded")
    b.freeze()
    a.thaw()
    a.go()
    assert a.finish()["error"] == "Fenced", "its commit landed, its ack did not"
    b.thaw()
    b.go()
    assert b.finish()["done"]["last"] == 4
    assert_exactly_once(tmp_path / "table", 50)


def test_should_load_once_when_a_zombie_wakes_before_its_ack(
    pair: tuple[LoaderProcess, LoaderProcess], tmp_path: Path, config: Config
) -> None:
    a, b = pair
    produce(tmp_path / "queue", numbered(5))
    a.start(config(), pause_at=[committed(config())])
    a.wait_for(at=committed(config()))
    a.freeze()
    b.start(config(), pause_at=["planned"])
    b.wait_for(at="planned")
    b.freeze()
    a.thaw()
    a.go()
    assert a.finish()["error"] == "Fenced"
    a.start(config())  # and a third one takes over from B, which stands before its commit
    assert a.finish()["done"]["last"] == 4
    b.thaw()
    b.go()
    assert b.finish()["error"] == "Fenced"
    assert_exactly_once(tmp_path / "table", 50)


@pytest.mark.parametrize("ledger", ["fresh queue", "known queue"])
def test_should_let_one_of_two_loaders_win_when_they_start_at_once(
    pair: tuple[LoaderProcess, LoaderProcess],
    tmp_path: Path,
    config: Config,
    ledger: str,
) -> None:
    a, b = pair
    records = 0
    if ledger == "known queue":
        records += produce(tmp_path / "queue", numbered(1))
        a.start(config())
        a.finish()
    records += produce(tmp_path / "queue", numbered(8, start=records))
    a.start(config(max_batches_per_commit=1))
    b.start(config(max_batches_per_commit=1))
    ends = [a.finish(), b.finish()]
    assert any("done" in end for end in ends), ends
    assert all("done" in end or end["error"] == "Fenced" for end in ends), ends
    assert_exactly_once(tmp_path / "table", records)


def test_should_finish_the_commit_in_hand_on_sigterm(
    pair: tuple[LoaderProcess, LoaderProcess], tmp_path: Path, config: Config
) -> None:
    a, _ = pair
    produce(tmp_path / "queue", numbered(6))
    a.start(config(), pause_at=["planned"])
    a.wait_for(at="planned")
    a.signal(signal.SIGTERM)
    a.go()
    assert a.finish()["done"]["last"] == 2, "the first range is committed and acked, the second not begun"
    assert_exactly_once(tmp_path / "table", 30)
    a.start(config())
    assert a.finish()["done"]["last"] == 5
    assert_exactly_once(tmp_path / "table", 60)


@pytest.mark.thorough
def test_should_load_once_when_killed_after_every_step(tmp_path: Path, config: Config) -> None:
    """kill -9 after each line of the loop, with rows for two tables; each run meets what the one before left behind."""
    dead = str(tmp_path / "dead")
    settings = config(dead_letters=dead)
    steps = [
        "bound",
        "claimed",
        "entered",
        "planned",
        "decoded",
        *("staged", "staged"),  # files of both writers that are in no table
        "split",
        appended(settings),
        committed(settings),
        f"appended {dead}",
        f"committed {dead}",
        "acked",
    ]
    records = 0
    writers = cycle(["arrow", "spark"])
    processes = [LoaderProcess(tmp_path)]
    try:
        for step in steps:
            records += produce(tmp_path / "queue", with_bad_ones(2, start=records))
            processes.append(LoaderProcess(tmp_path))  # the next one starts its JVM while this one dies
            processes[-2].wait_for("ready")
            # By turns: each writer meets what the other one has left at the step before.
            processes[-2].start(settings | {"writer": next(writers)}, die_at=step)
            processes[-2].wait_dead()
        processes[-1].wait_for("ready")
        processes[-1].start(settings)
        assert "done" in processes[-1].finish()
    finally:
        for process in processes:
            process.kill()
    assert_each_where_it_belongs(tmp_path / "table", Path(dead), records)
