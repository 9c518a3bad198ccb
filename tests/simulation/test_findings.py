"""What the simulator has found, as short stories: seeds change their meaning when worlds change, these do not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from buffer.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.errors import ContentionError, CorruptBatch
from buffer.ledger import Blocked as BlockedState
from buffer.queue import QueueProducer
from buffer.testing.simulator import Actor, Host, Record, Weather, World
from buffer.testing.simulator.world import MANIFEST_PATH
from buffer_delta.contracts import Rules
from buffer_delta.errors import Blocked, RouteChanged
from buffer_delta.journal import Journal
from buffer_delta.protocol import LoadProtocol
from buffer_delta.testing.delta_log import SimulatedTarget
from buffer_delta.testing.tables import Tables
from buffer_delta.testing.work import ROUTINGS, Poison, SimulatedWork


class Story(Actor):
    """A queue with one batch that nobody can read, and loaders that are driven step by step."""

    dead_letters: str | None = None
    batches = 1

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        names = ["main", self.dead_letters] if self.dead_letters else ["main"]
        self.tables = Tables(world, names, self.dead_letters)
        self.poison = Poison(world.scheduler, Random(0), mended_at_s=float("inf"), chance=1.0)
        self.is_told = False

    @property
    def is_done(self) -> bool:
        return self.is_told

    def run(self, host: Host) -> None:
        for key in range(self.batches):
            location = f"ingest/{host.clock.new_ulid()}.batch"
            host.store.put(location, encode_batch([Record("p", key, 1, key, "!").to_bytes()]))
            QueueProducer(host.store, MANIFEST_PATH, host.clock).append_locations([(location, ())])
        self.tell(host)
        self.is_told = True

    def tell(self, host: Host) -> None:
        raise NotImplementedError

    def loader(
        self, host: Host, reached: Callable[[str], None] = lambda _: None, routing: str = ROUTINGS[0]
    ) -> LoadProtocol:
        return LoadProtocol(
            ConsumerConfig(store=host.store, gc_enabled=False),
            host.store,
            [SimulatedTarget(self.world, host, log) for log in self.tables.logs],
            SimulatedWork(host, self.tables, self.poison, routing),
            host.clock,
            Rules(max_delivery_attempts=1, dlq_strategy="skip" if self.dead_letters else "block"),
            reached=reached,
        )


def tell(story: type[Story]) -> None:
    world = World(1, Weather(calm_at_s=0.0))
    world.add(story(world, "story"))
    world.checks.clear()  # the batch stays blocked
    world.run(drain_s=1000.0)


def step(loader: LoadProtocol) -> Any:
    return loader.step(len, 10)


def test_should_notice_a_block_that_came_between_its_look_and_its_claim() -> None:
    """Else the operator's `unblock` rewrites the plan of a loader that runs, which sees a stranger's plan then; with
    several tables, and `--skip`, a record could end in two of them or in none."""

    class BlockedMeanwhile(Story):
        def tell(self, host: Host) -> None:
            first, second = self.loader(host), self.loader(host)
            first.open()
            with pytest.raises(CorruptBatch):
                step(first)
            real = Journal.enter

            def enter_late(journal: Journal, *args: Any) -> Any:
                with patch.object(Journal, "enter", real), pytest.raises(Blocked):
                    step(first)
                return real(journal, *args)

            with patch.object(Journal, "enter", enter_late), pytest.raises(Blocked):
                second.open()

    tell(BlockedMeanwhile)


def test_should_stop_when_it_is_unknown_whether_the_block_was_written() -> None:
    """Else it goes on while the ledger says that it is blocked, and an operator acts on that."""

    class AnswerLost(Story):
        def tell(self, host: Host) -> None:
            loader = self.loader(host)
            loader.open()
            with pytest.raises(CorruptBatch):
                step(loader)
            real = Journal.block

            def block(journal: Journal, epoch: int, blocked: BlockedState) -> None:
                real(journal, epoch, blocked)
                raise ContentionError("gave up", location=journal.location, attempts=1)

            with patch.object(Journal, "block", block), pytest.raises(Blocked):
                step(loader)

    tell(AnswerLost)


def test_should_not_set_a_batch_aside_whose_rows_may_be_in_a_table() -> None:
    """It can be read until the main table has its rows, not any more when the dead letters are due (seed 551)."""

    class DamagedInBetween(Story):
        dead_letters = "dead letters"

        def tell(self, host: Host) -> None:
            def die(step: str) -> None:
                if step == "committed main":
                    raise KeyboardInterrupt

            first, second = self.loader(host, die), self.loader(host)
            first.open()
            with patch.object(self.poison, "strikes", lambda: False), pytest.raises(KeyboardInterrupt):
                step(first)
            second.open()
            for _ in range(3):
                with pytest.raises(CorruptBatch):
                    step(second)
            with patch.object(self.poison, "strikes", lambda: False):
                assert step(second).plan.quarantined == {}
            assert [len(log.commits[-1].rows) for log in self.tables.logs] == [1, 0]

    tell(DamagedInBetween)


def test_should_refuse_another_configuration_before_it_fences_the_loader_at_work() -> None:
    """Else one loader is refused, the other one fenced by it, and nobody loads."""

    class StartedTooSoon(Story):
        dead_letters = "dead letters"

        def tell(self, host: Host) -> None:
            def start_another(at: str) -> None:
                if at == "split":
                    with pytest.raises(RouteChanged, match="--replan"):
                        self.loader(host, routing=ROUTINGS[1]).open()

            with patch.object(self.poison, "strikes", lambda: False):
                loader = self.loader(host, start_another)
                loader.open()
                assert step(loader).plan.last == 0
                self.loader(host, routing=ROUTINGS[1]).open()  # nothing is begun any more

    tell(StartedTooSoon)


def test_should_not_decide_while_a_batch_could_not_be_looked_at() -> None:
    """Both are bad, an executor is lost while it looks at the first: setting the second one aside alone would be for
    good, and the first would stop the loader for ever (seed 67448)."""

    class HalfBlind(Story):
        dead_letters = "dead letters"
        batches = 2

        def tell(self, host: Host) -> None:
            loader = self.loader(host)
            loader.open()
            with pytest.raises(CorruptBatch):
                step(loader)
            losses = iter([True])  # the first look of the probe
            with patch.object(self.poison, "executor_fails", lambda: next(losses, False)), pytest.raises(CorruptBatch):
                step(loader)
            assert sorted(step(loader).plan.quarantined) == [0, 1]

    tell(HalfBlind)
