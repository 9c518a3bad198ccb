"""The order of steps on tables that are made up: what an operator accepts, and tables that are replaced meanwhile.

What the model of Delta's log cannot do (`tests/simulation`): take rows back, drop a table, make another in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.errors import Fenced, StorageError
from buffer.queue import QueueProducer
from buffer.store.base import Store
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.state import NO_TABLE, Commit, Rewrite, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import ConcurrentCommit, LedgerBehind, TableReplaced, TableRewritten
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Done, Rules
from buffer_delta.load.protocol import LoadProtocol

NO_RULES = TableRules()
RESTORED = Rewrite("RESTORE", 5, "2023-11-14T22:13:20Z")


class Killed(BaseException):
    """The end of the process."""


@dataclass
class Files:
    table: Table
    rows: tuple[str, ...]
    txn: Txn
    seen: TableState

    def commit(self) -> Commit:
        for happens in (self.table.before_commit, self.table.after_commit):
            if happens:
                happens.pop(0)(self.table)
            if happens is self.table.before_commit:
                self.table.append(self.rows, self.txn)
        return Commit(self.table.state.version, len(self.rows), 1, 1, 0.0, self.table.state)


@dataclass
class Table:
    """One that goes by its name alone, as a log does: whatever stands there gets the next version."""

    name: str
    rules: TableRules = NO_RULES
    state: TableState = NO_TABLE
    rows: list[str] = field(default_factory=list)
    made: int = 0
    before_commit: list[Callable[[Table], None]] = field(default_factory=list)
    after_commit: list[Callable[[Table], None]] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"file:/{self.name}"

    def identity(self) -> str | None:
        return self.state.table_id

    def look(self, _app_id: str) -> TableState:
        return self.state

    def nothing(self, _seen: TableState) -> tuple[str, ...]:
        return ()

    def stage(self, rows: tuple[str, ...], txn: Txn, seen: TableState) -> Files:
        if seen.version is None:
            self.create()
            seen = self.state
        return Files(self, rows, txn, seen)

    def rehearse(self, *_: Any) -> None:
        raise AssertionError("nothing fails here")

    def append(self, rows: tuple[str, ...], txn: Txn) -> None:
        self.state = replace(self.state, version=(self.state.version or 0) + 1, position=txn.last, rewrite=None)
        self.rows += rows

    def create(self) -> None:
        """One of that name, in the place of another if there is one."""
        self.made += 1
        self.rows = []
        self.state = TableState(self.state.version or 0, f"{self.name} {self.made}", rules=self.rules)

    def drop(self) -> None:
        self.rows, self.state = [], NO_TABLE

    def restore(self) -> None:
        self.state = replace(self.state, rewrite=RESTORED)


@dataclass
class Work:
    """Each entry names the table that its row goes to."""

    tables: tuple[str, ...]
    digest: str = "d"
    known_digests: tuple[str, ...] = ("d",)

    def main_alone(self) -> Work:
        return self

    @contextmanager
    def prepare(self, part: Any, _seen: Any) -> Iterator[Mapping[str, Any]]:
        rows = [(QUEUED[d.location], str(d.sequence)) for d in part.descriptors]
        found = {name: tuple(row for to, row in rows if to == name) for name in self.tables}
        yield {name: rows for name, rows in found.items() if rows or name == self.tables[0]}


QUEUED: dict[str, str] = {}
"""Where the record of a batch goes, by the batch's location."""


class Place:
    """A queue, its tables, and loaders that run once each."""

    def __init__(self, store: Store, *names: str, rules: TableRules = NO_RULES) -> None:
        self.store, self.clock = store, SystemClock()
        self.config = ConsumerConfig(store=store, gc_enabled=False)
        self.tables = {name: Table(name, rules) for name in ("main", *names)}

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def add(self, to: str = "main") -> None:
        location = f"ingest/{self.clock.new_ulid()}.batch"
        QUEUED[location] = to
        self.store.put(location, encode_batch([b"x"]))
        QueueProducer(self.store, self.config.manifest_path, self.clock).append_locations([(location, ())])

    def run(
        self,
        *,
        skip: bool = False,
        die: str | None = None,
        attempts: int = 1,
        at: Mapping[str, Callable[[], None]] | None = None,
    ) -> Done | None:
        """`at`: what happens once a step is reached."""

        def reached(step: str) -> None:
            if step == die:
                raise Killed(step)
            if at and step in at:
                at[step]()

        rules = Rules(accept_gaps=skip, has_dead_letters="dead" in self.tables, dlq_strategy="skip")
        work: Any = Work(tuple(self.tables))
        targets: Any = list(self.tables.values())
        loader = LoadProtocol(self.config, self.store, targets, work, self.clock, rules, reached=reached)
        try:
            loader.open()
            for _ in range(attempts - 1):
                with pytest.raises((TimeoutError, StorageError)):
                    loader.step(len, 10)
            return loader.step(len, 10)
        finally:
            loader.close()

    def manifest(self) -> list[str]:
        return [entry.location for entry in QueueProducer(self.store, self.config.manifest_path, self.clock).read()]

    def loads(self, **how: Any) -> tuple[int, int] | None:
        done = self.run(**how)
        return None if done is None else (done.plan.first, done.plan.last)


RULES = [NO_RULES, TableRules(not_null=(("id",),), checks=(("c", "id > 0"),), partition_by=("day",))]


# What an operator accepts


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("names", [("dead",), ("other", "dead"), ("other", "more")])
@pytest.mark.parametrize("die", ["planned", "staged", "split", "committed a side table"])
def test_should_finish_with_a_loss_accepted_what_was_begun_without(
    memory: Store, names: tuple[str, ...], rules: TableRules, die: str
) -> None:
    """A range has rows for some tables, and its loader dies; one that gets none of it is restored meanwhile."""
    place = Place(memory, *names, rules=rules)
    for name in ("main", *names):
        place.add(name)
    place.run()
    place.add()
    place.add(names[0])
    place.add()
    last = names[-1] if len(names) > 1 else None
    with pytest.raises(Killed):
        place.run(die=f"committed {names[0]}" if die.startswith("committed") else die)
    (place[last] if last else place["main"]).restore()
    with pytest.raises(TableRewritten, match="on_gap='skip'"):
        place.run()
    count = len(names) + 1
    assert place.loads(skip=True) == (count, count + 2)
    place.add()
    assert place.loads() == (count + 3, count + 3), "and once is enough"
    assert place["main"].rows == ["0", str(count), str(count + 2), str(count + 3)]
    assert place[names[0]].rows == ["1", str(count + 1)]


@pytest.mark.parametrize("names", [("dead",), ("other", "dead")])
def test_should_finish_with_a_loss_accepted_a_range_for_the_main_table(memory: Store, names: tuple[str, ...]) -> None:
    """Nothing of it is for the table that was restored."""
    place = Place(memory, *names)
    place.add(names[-1])
    place.run()
    place.add()
    with pytest.raises(Killed):
        place.run(die="split")
    place[names[-1]].restore()
    with pytest.raises(TableRewritten, match="on_gap='skip'"):
        place.run()
    assert place.loads(skip=True) == (1, 1)
    place.add()
    assert place.loads() == (2, 2)
    assert place["main"].rows == ["1", "2"]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("to", ["main", "other", "dead"])
def test_should_finish_without_a_loss_accepted_what_was_begun_with(memory: Store, to: str, rules: TableRules) -> None:
    place = Place(memory, "other", "dead", rules=rules)
    place.add()
    place.run()
    place.add(to)
    with pytest.raises(Killed):
        place.run(skip=True, die="split")
    assert place.loads() == (1, 1)
    place.add(to)
    with pytest.raises(Killed):
        place.run(die="split")
    assert place.loads(skip=True) == (2, 2)
    assert place[to].rows[-2:] == ["1", "2"]


# Tables that are replaced


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("replaced", ["main", "dead"])
def test_should_say_that_a_commit_went_into_another_table(memory: Store, replaced: str, skip: bool) -> None:
    """It is dropped and made again while the rows' files are written, and the commit goes by its name."""
    place = Place(memory, "dead")
    for name in ("main", "dead"):
        place.add(name)
    place.run()
    place.add(replaced)
    place[replaced].before_commit.append(Table.create)
    with pytest.raises(TableReplaced, match=r"2\.\.2.* went into the new one") as raised:
        place.run(skip=skip)
    assert (raised.value.expected_id, raised.value.found_id) == (f"{replaced} 1", f"{replaced} 2")
    with pytest.raises(TableReplaced):
        place.run()
    place[replaced].drop()
    assert place.loads(skip=True) == (2, 2), "the queue still holds it"
    assert place[replaced].rows == ["2"]


def test_should_say_so_of_a_table_that_the_range_has_made(memory: Store) -> None:
    place = Place(memory)
    place.add()
    place["main"].before_commit.append(Table.create)
    with pytest.raises(TableReplaced, match="went into the new one"):
        place.run()


def lost(_table: Table) -> None:
    raise TimeoutError("no reply")


def conflicting(table: Table) -> None:
    raise ConcurrentCommit("it has landed before", table=table.name, app_id="", last=0, reason="")


@pytest.mark.parametrize("ends", [lost, conflicting])
def test_should_say_so_where_the_reply_to_the_commit_is_lost(memory: Store, ends: Callable[[Table], None]) -> None:
    place = Place(memory)
    place.add()
    place.run()
    place.add()
    place["main"].before_commit.append(Table.create)
    place["main"].after_commit.append(ends)
    with pytest.raises(TableReplaced, match="dropped and made again"):
        place.run(attempts=2 if ends is lost else 1)
    place["main"].drop()
    assert place.loads(skip=True) == (1, 1)


def test_should_not_mind_a_table_that_is_replaced_before_its_rows_are_staged(memory: Store) -> None:
    """The commit is refused, and the look after it finds a table that holds nothing yet: it was never loaded."""
    place = Place(memory)
    place.add()

    def replaced(table: Table) -> None:
        table.create()
        conflicting(table)

    place["main"].before_commit.append(replaced)
    assert place.loads() == (0, 0)
    assert (place["main"].identity(), place["main"].rows) == ("main 2", ["0"])


# Another queue under the same app_id


@pytest.mark.parametrize("to", ["main", "side"])
@pytest.mark.parametrize("step", ["entered", "planned", "decoded"])
@pytest.mark.parametrize("was_loaded", [False, True])
def test_should_not_take_the_range_of_another_queue_for_its_own(
    memory: Store, to: str, step: str, was_loaded: bool
) -> None:
    """Two queues of one app_id into one table: where both plan a range with the same end, the second would find the
    table there, and ack rows that are in no table. It refuses, and so does every later start."""
    place = Place(memory, "side")
    if was_loaded:
        place.add()
        place.run()
    place.add(to)
    last = int(was_loaded)

    def committed() -> None:
        for table in place.tables.values():
            table.append(("a stranger's",), Txn("app", 0, last, 1, 1))

    before = place.manifest()
    with pytest.raises(LedgerBehind, match="the app_id belongs to another queue"):
        place.run(at={step: committed})
    for _ in range(2):
        with pytest.raises(LedgerBehind, match=f"sequence {last} .* planned only through {last - 1}"):
            place.run()
    assert place.manifest() == before, "the queue holds what is in no table"


def strangers(place: Place) -> None:
    place["main"].append(("a stranger's",), Txn("app", 0, 0, 1, 1))


def without_answers(monkeypatch: pytest.MonkeyPatch, *, is_done: bool, times: int) -> None:
    """Taking a plan back is done, or not, and nobody hears of it."""
    real, left = Plans.withdraw, [None] * times

    def withdraw(*arguments: Any) -> None:
        if is_done or not left:
            real(*arguments)
        if left:
            left.pop()
            raise StorageError("no answer")

    monkeypatch.setattr(Plans, "withdraw", withdraw)


@pytest.mark.parametrize("is_done", [False, True])
def test_should_refuse_it_once_the_plan_is_known_to_be_taken_back(
    memory: Store, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    place = Place(memory)
    place.add()
    without_answers(monkeypatch, is_done=is_done, times=2)
    with pytest.raises(LedgerBehind):
        place.run(at={"planned": lambda: strangers(place)}, attempts=3)
    with pytest.raises(LedgerBehind, match="planned only through -1"):
        place.run()
    assert len(place.manifest()) == 1


@pytest.mark.parametrize("is_away", [False, True])
def test_should_not_take_what_a_successor_has_loaded_for_another_queues(
    memory: Store, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """Stopped behind its plan, it finds its table at the end of it; also if the store does not answer just then."""
    place = Place(memory)
    place.add()
    if is_away:
        without_answers(monkeypatch, is_done=False, times=1)
    with pytest.raises(Fenced):
        place.run(at={"planned": lambda: place.run() and None})
    assert (place["main"].rows, place.manifest()) == (["0"], [])
