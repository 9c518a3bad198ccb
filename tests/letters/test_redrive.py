"""The walk of a redrive: killed at every step, repeated, two at once; a real queue, and a model of the table."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import ContentionError, ObjectNotFound
from buffer.produce.producer import Producer
from buffer.store.base import Store
from buffer.store.open import open_store
from buffer_delta.errors import RedriveUnfinished
from buffer_delta.letters.home import QueueHome
from buffer_delta.letters.redrive import CLAIM_ATTEMPTS_MAX, redrive
from buffer_delta.letters.values import Claim, Key, Letter, Redriven

STEPS = ("numbered", "claimed", "put", "marked")


class Killed(BaseException):
    """The end of the process: nothing after it runs."""


@dataclass
class Row:
    letter: Letter
    number: int | None = None
    queue_id: str = ""
    done: bool = False
    sequence: int | None = None


@dataclass
class Table:
    """What Delta keeps: rows, and the largest transaction of the app."""

    rows: dict[Key, Row]
    position: int = -1
    conflicts: int = 0
    """How many claims are lost to other commands."""

    @classmethod
    def of(cls, count: int) -> Table:
        letters = [
            Letter(Key(n // 3, n % 3, f"b{n // 3}"), f"letter {n}".encode(), b"m%d" % (n // 2)) for n in range(count)
        ]
        return cls({letter.key: Row(letter) for letter in letters})


@dataclass
class View:
    """One redrive's view of the table."""

    table: Table
    per_batch: int = 2
    start: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = sorted(key for key, row in self.table.rows.items() if row.number is None)

    def last_number(self) -> int:
        return self.table.position

    def chosen(self, after: Key | None) -> Sequence[Key]:
        return [key for key in self.start if after is None or key > after][: self.per_batch]

    def claim(self, number: int, queue_id: str, place: str, keys: Sequence[Key]) -> None:
        if self.table.conflicts:
            self.table.conflicts -= 1
            return
        if number <= self.table.position:
            return
        self.table.position = number
        for key in keys:
            if self.table.rows[key].number is None:
                self.table.rows[key].number, self.table.rows[key].queue_id = number, queue_id

    def free(self, keys: Sequence[Key]) -> Sequence[Key]:
        return [key for key in keys if self.table.rows[key].number is None]

    def pending(self) -> Claim | None:
        rows = [row for row in self.table.rows.values() if row.number is not None and not row.done]
        number = min((row.number for row in rows if row.number is not None), default=None)
        if number is None:
            return None
        found = sorted((row for row in rows if row.number == number), key=lambda row: row.letter.key)
        return Claim(number, found[0].queue_id, "there", [row.letter for row in found])

    def mark(self, number: int, sequence: int | None) -> None:
        for row in self.table.rows.values():
            if row.number == number and not row.done:
                row.done, row.sequence = True, sequence


def new_queue() -> Store:
    store = open_store("memory://")
    with Producer(ProducerConfig(store=store, flush_interval_ms=1)) as producer:
        producer.produce([b"an ordinary entry"], b"x").watcher.await_durable()
    return store


@pytest.fixture
def store() -> Store:
    return new_queue()


def home(store: Store, path: str = "ingest/manifest") -> QueueHome:
    config = ProducerConfig(store=store, manifest_path=path)
    return QueueHome("redrive/t", store, config, SystemClock())


def go(table: Table, store: Store, reached: Callable[[str], None] = lambda _: None) -> Redriven:
    return redrive(View(table), home(store), SystemClock(), reached=reached)


def at(step: int, act: Callable[[], None]) -> Callable[[str], None]:
    """Do it at that step of the walk, counted through."""
    steps = itertools.count()

    def reached(_name: str) -> None:
        if next(steps) == step:
            act()

    return reached


def die() -> None:
    raise Killed


def attempt(table: Table, store: Store, reached: Callable[[str], None]) -> None:
    with suppress(Killed):
        go(table, store, reached)


def assert_back_once(table: Table, store: Store) -> None:
    with Consumer.new(ConsumerConfig(store=store, gc_enabled=False)) as consumer:
        batches = []
        while (batch := consumer.next_batch()) is not None:
            batches.append(batch)
    letters = sorted((row.letter for row in table.rows.values()), key=lambda letter: letter.key)
    entries = [entry for batch in batches[1:] for entry in batch.entries]
    assert Counter(entries) == Counter(letter.payload for letter in letters)
    assert all(row.done for row in table.rows.values())
    by_payload = {letter.payload: letter.metadata for letter in letters}
    for batch in batches[1:]:
        starts = [item.start_index for item in batch.metadata]
        for index, entry in enumerate(batch.entries):
            item = batch.metadata[sum(start <= index for start in starts) - 1]
            assert item.payload == by_payload[entry]
            rows = [row for row in table.rows.values() if row.letter.payload == entry]
            assert rows[0].sequence in (batch.sequence, None)


def test_should_send_every_letter_back_once_with_its_metadata(store: Store) -> None:
    table = Table.of(7)
    assert go(table, store) == Redriven(letters=7, batches=4, finished=0)
    assert go(table, store) == Redriven(0, 0, 0)
    assert_back_once(table, store)
    assert all(row.sequence is not None for row in table.rows.values())


@pytest.mark.parametrize("first", range(2 * len(STEPS) + 1))
@pytest.mark.parametrize("second", range(len(STEPS) + 1))
def test_should_finish_what_died_at_any_step_twice(store: Store, first: int, second: int) -> None:
    table = Table.of(5)
    attempt(table, store, at(first, die))
    attempt(table, store, at(second, die))
    go(table, store)
    assert_back_once(table, store)


@pytest.mark.parametrize("inside", range(2 * len(STEPS)))
@pytest.mark.parametrize("dies", [None, 0, 1, 2, 3, 5, 6, 7])
def test_should_send_each_back_once_where_two_run_at_once(store: Store, inside: int, dies: int | None) -> None:
    """The other one runs in the middle of ours, to its end or to its death; then ours, the older one, wakes up."""
    table = Table.of(6)

    def other() -> None:
        attempt(table, store, at(-1 if dies is None else dies, die))

    go(table, store, at(inside, other))
    assert_back_once(table, store)
    assert go(table, store) == Redriven(0, 0, 0)


def test_should_finish_anothers_letters_whatever_it_was_asked_for(store: Store) -> None:
    table = Table.of(4)
    attempt(table, store, at(1, die))
    done = redrive(View(table, start=[]), home(store), SystemClock())
    assert (done.letters, done.finished) == (4, 2)
    assert_back_once(table, store)


def test_should_try_again_where_other_commands_come_between(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "sleep", lambda _clock, _seconds: None)
    table = Table.of(3)
    table.conflicts = 3
    go(table, store)
    assert_back_once(table, store)
    table = Table.of(3)
    table.conflicts = CLAIM_ATTEMPTS_MAX
    with pytest.raises(ContentionError, match="2 letters could not be claimed"):
        go(table, store)


def test_should_not_mix_two_queues(store: Store) -> None:
    with Producer(ProducerConfig(store=store, manifest_path="other/manifest", flush_interval_ms=1)) as producer:
        producer.produce([b"an ordinary entry"]).watcher.await_durable()
    table = Table.of(2)
    attempt(table, store, at(1, die))
    with pytest.raises(RedriveUnfinished, match=r"queue is gone for good .* UPDATE … SET redrive = NULL") as caught:
        redrive(View(table), home(store, "other/manifest"), SystemClock())
    assert caught.value.letters == 2
    go(table, store)
    assert_back_once(table, store)


def test_should_not_take_a_number_that_the_queue_knows(store: Store) -> None:
    """Delta may forget an app's transactions: what went under a number that is used would count as done."""
    table = Table.of(2)
    go(table, store)
    more = {Key(9, n, "b9"): Row(Letter(Key(9, n, "b9"), b"later %d" % n, b"")) for n in range(2)}
    table.rows.update(more)
    table.position = -1
    go(table, store)
    assert_back_once(table, store)


def test_should_not_make_a_queue_of_a_misspelt_path(store: Store) -> None:
    with pytest.raises(ObjectNotFound):
        home(store, "ingst/manifest")


# The checks above can fail


class Hasty(View):
    """Marks what is only claimed."""

    def claim(self, number: int, queue_id: str, place: str, keys: Sequence[Key]) -> None:
        super().claim(number, queue_id, place, keys)
        self.late = super().pending()
        self.mark(number, None)

    def pending(self) -> Claim | None:
        found, self.late = getattr(self, "late", None), None
        return found


class Impatient(View):
    """Leaves the claims of others for later: a larger number is put before a smaller one."""

    def pending(self) -> Claim | None:
        rows = [row for row in self.table.rows.values() if row.number is not None and not row.done]
        number = max((row.number for row in rows if row.number is not None), default=None)
        if number is None or not self.start or not any(self.table.rows[key].number == number for key in self.start):
            return None if self.start else super().pending()
        found = sorted((row for row in rows if row.number == number), key=lambda row: row.letter.key)
        return Claim(number, found[0].queue_id, "there", [row.letter for row in found])


@pytest.mark.parametrize(("view", "with_marks"), [(Hasty, True), (Impatient, True), (View, False)])
def test_should_notice_a_walk_that_loses_or_doubles(view: type[View], with_marks: bool) -> None:
    runs = itertools.count()
    failures = 0

    def walk(table: Table, store: Store, reached: Callable[[str], None]) -> None:
        client = "redrive/t" if with_marks else f"redrive/{next(runs)}"
        target = QueueHome(client, store, ProducerConfig(store=store), SystemClock())
        with suppress(Killed):
            redrive(view(table), target, SystemClock(), reached=reached)

    for step in range(2 * len(STEPS)):
        table, store = Table.of(4), new_queue()
        walk(table, store, at(step, die))
        walk(table, store, lambda _: None)
        walk(table, store, lambda _: None)
        try:
            assert_back_once(table, store)
        except AssertionError:
            failures += 1
    assert failures
