"""Tables join and leave between plans, and get nothing where there is nothing for them: short stories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.errors import CorruptLedger, Fenced
from buffer.queue import QueueProducer
from buffer.testing.simulator import Host, Record
from buffer.testing.simulator.world import MANIFEST_PATH
from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import RouteChanged
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Rules
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.testing.delta_log import SimulatedFiles, SimulatedTarget
from buffer_delta.testing.older import OlderProtocol, OlderWork
from buffer_delta.testing.work import Setup
from tests.simulation.stories import Story, step, tell


def put_batch(host: Host, key: int, kinds: str) -> None:
    location = f"ingest/{host.clock.new_ulid()}.batch"
    records = [Record("q", 10 * key + i, 1, key, kind) for i, kind in enumerate(kinds)]
    host.store.put(location, encode_batch([record.to_bytes() for record in records]))
    QueueProducer(host.store, MANIFEST_PATH, host.clock).append_locations([(location, ())])


def stop_at(step_name: str) -> Callable[[str], None]:
    def reached(at: str) -> None:
        if at == step_name:
            raise KeyboardInterrupt

    return reached


class Joining(Story):
    """Records for the main table, the second one and the dead letters, in one batch."""

    second = "second"
    dead_letters = "dead letters"
    kinds = "abx"

    def rows(self) -> dict[str, list[tuple[int, int]]]:
        return {
            log.name: [(row.sequence, row.index) for commit in log.commits for row in commit.rows]
            for log in self.tables.logs
        }


class Upgraded(Joining):
    """… which a loader of the release before has begun to load."""

    def older(self, host: Host, reached: Callable[[str], None] = lambda _: None) -> LoadProtocol:
        setup = Setup(tuple(self.tables.names), self.dead_letters)
        return OlderProtocol(
            ConsumerConfig(store=host.store, gc_enabled=False),
            host.store,
            [self.target(host, name) for name in setup.tables],
            OlderWork(host, self.poison, setup),
            host.clock,
            Rules(has_dead_letters=True, dlq_strategy="skip"),
            reached=reached,
        )


def test_should_finish_a_range_of_one_table_without_those_that_joined() -> None:
    """An older loader, which knows of one table alone, has written all rows for it and wakes up at the worst moment."""

    class WakesUp(Joining):
        def tell(self, host: Host) -> None:
            older = self.loader(host, stop_at("staged"), tables=("main",))
            newer = self.loader(host)
            files: list[SimulatedFiles] = []
            real = SimulatedTarget.stage

            def stage(target: SimulatedTarget, rows: Any, txn: Txn, seen: TableState) -> SimulatedFiles:
                files.append(real(target, rows, txn, seen))
                return files[-1]

            older.open()
            with patch.object(SimulatedTarget, "stage", stage), pytest.raises(KeyboardInterrupt):
                step(older)
            newer.open()
            files[0].commit()
            assert step(newer).plan.tables == ("main",)
            put_batch(host, 1, "abx")
            assert step(newer).plan.tables == ("main", "second", "dead letters")
            assert self.rows() == {
                "main": [(0, 0), (0, 1), (0, 2), (1, 0)],
                "second": [(1, 1)],
                "dead letters": [(1, 2)],
            }

    tell(WakesUp)


def test_should_take_on_a_range_of_several_tables_of_which_nothing_is_decided() -> None:
    """Into the tables that it has itself: who planned it cannot commit anything of it any more."""

    class TakenOn(Joining):
        def tell(self, host: Host) -> None:
            first = self.loader(host, stop_at("staged"))
            first.open()
            with pytest.raises(KeyboardInterrupt):
                step(first)
            alone = self.loader(host, tables=("main",))
            alone.open()
            with pytest.raises(Fenced):
                step(first)
            assert step(alone).plan.tables == ("main",)
            assert self.rows() == {"main": [(0, 0), (0, 1), (0, 2)], "second": [], "dead letters": []}

    tell(TakenOn)


def test_should_have_a_decided_range_finished_by_the_configuration_that_began_it() -> None:
    class Decided(Joining):
        def tell(self, host: Host) -> None:
            first = self.loader(host, stop_at("committed second"))
            first.open()
            with pytest.raises(KeyboardInterrupt):
                step(first)
            for tables in (("main",), ("main", "second")):
                with pytest.raises(RouteChanged, match="other tables"):
                    self.loader(host, tables=tables).open()
            again = self.loader(host)
            again.open()
            assert again.committed == -1, "the second table has its part; the main one tells"
            step(again)
            self.loader(host, tables=("main",)).open()
            assert self.rows() == {"main": [(0, 0)], "second": [(0, 1)], "dead letters": [(0, 2)]}

    tell(Decided)


def test_should_commit_nothing_to_a_table_that_gets_nothing() -> None:
    class Plain(Joining):
        kinds = "a"

        def tell(self, host: Host) -> None:
            loader = self.loader(host)
            loader.open()
            assert list(step(loader).commits) == ["main"]
            put_batch(host, 1, "b")
            assert list(step(loader).commits) == ["second", "main"]
            self.loader(host).open()  # tables at different positions are no gap
            assert [bool(log.commits) for log in self.tables.logs] == [True, True, False]

    tell(Plain)


def test_should_not_ask_again_for_what_an_older_plan_had_no_rows_for() -> None:
    """The dead letters stay behind it, and its batches are gone: it is done because the ledger says so."""

    class Named(Upgraded):
        kinds = "ab"

        def tell(self, host: Host) -> None:
            older = self.older(host, stop_at("committed main"))
            older.open()
            with pytest.raises(KeyboardInterrupt):
                step(older)
            newer = self.loader(host)
            newer.open()
            assert list(step(newer).commits) == ["second"]
            for tables in (("main", "second", "dead letters"), ("main",)):
                last = self.loader(host, tables=tables)
                last.open()
                assert (last.committed, step(last)) == (0, None)

    tell(Named)


@pytest.mark.parametrize("dies_at", [None, "committed second", "committed dead letters", "named"])
def test_should_finish_what_the_release_before_left_half_done(dies_at: str | None) -> None:
    """It committed the main table first. Were that one's position the frontier, the range would count as loaded, be
    acked, and the second table would lack its part for ever."""

    class HalfDone(Upgraded):
        def tell(self, host: Host) -> None:
            older = self.older(host, stop_at("committed main"))
            older.open()
            with pytest.raises(KeyboardInterrupt):
                step(older)
            assert self.rows() == {"main": [(0, 0)], "second": [], "dead letters": []}
            with pytest.raises(RouteChanged):
                self.loader(host, tables=("main",)).open()
            if dies_at is not None:
                dying = self.loader(host, stop_at(dies_at))
                dying.open()
                with pytest.raises(KeyboardInterrupt):
                    step(dying)
            newer = self.loader(host)
            newer.open()
            if dies_at in (None, "committed second"):
                assert newer.committed == -1
                assert step(newer).plan.tables == ("main", "second", "dead letters")
            assert self.rows() == {"main": [(0, 0)], "second": [(0, 1)], "dead letters": [(0, 2)]}
            put_batch(host, 1, "a")
            last = self.loader(host, tables=("main",))
            last.open()
            assert step(last).plan.last == 1
            with pytest.raises(CorruptLedger):
                self.older(host).open()

    tell(HalfDone)


def test_should_not_take_a_side_part_without_rows_for_a_missing_one_when_the_ledger_is_lost() -> None:
    """Tables at three positions: the second one joined late, the dead letters got nothing for long."""

    class Lost(Joining):
        kinds = "x"

        def tell(self, host: Host) -> None:
            loader = self.loader(host, tables=("main", "dead letters"))
            loader.open()
            step(loader)
            for key, kinds in ((1, "a"), (2, "ab")):
                put_batch(host, key, kinds)
                loader = self.loader(host)
                loader.open()
                step(loader)
            put_batch(host, 3, "a")
            step(loader)
            assert [log.look(loader.app_id).position for log in self.tables.logs] == [3, 2, 0]
            host.store.delete_many([Plans(host.store, MANIFEST_PATH, host.clock).location])
            adopted = self.loader(host, adopt=True, app_id=loader.app_id)
            adopted.open()
            assert (adopted.committed, step(adopted)) == (3, None)

    tell(Lost)
