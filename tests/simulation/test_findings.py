"""What the simulator has found, as short stories: seeds change their meaning when worlds change, these do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from buffer.codec.batch import encode_batch
from buffer.errors import ContentionError, CorruptBatch, LedgerLost
from buffer.ledger.plan import Blocked as BlockedState
from buffer.ledger.plan import Ledger
from buffer.queue import QueueProducer
from buffer.testing.simulator import Host, Record
from buffer.testing.simulator.world import MANIFEST_PATH
from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import Blocked, RouteChanged
from buffer_delta.load.isolate import Search
from buffer_delta.load.plans import Plans
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.load.retry import PASSING
from buffer_delta.load.tables import LoaderTables
from buffer_delta.testing.delta_log import RowRefused, SimulatedFiles, SimulatedTarget
from buffer_delta.testing.work import ROUTINGS
from tests.simulation.stories import Story, step, tell


def test_should_notice_a_block_that_came_between_its_look_and_its_claim() -> None:
    """Else the operator's `unblock` rewrites the plan of a loader that runs, which sees a stranger's plan then; with
    several tables, and `--skip`, a record could end in two of them or in none."""

    class BlockedMeanwhile(Story):
        def tell(self, host: Host) -> None:
            first, second = self.loader(host), self.loader(host)
            first.open()
            with pytest.raises(CorruptBatch):
                step(first)
            real = Plans.enter

            def enter_late(journal: Plans, *args: Any, **also: Any) -> Any:
                with patch.object(Plans, "enter", real), pytest.raises(Blocked):
                    step(first)
                return real(journal, *args, **also)

            with patch.object(Plans, "enter", enter_late), pytest.raises(Blocked):
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
            real = Plans.block

            def block(journal: Plans, epoch: int, blocked: BlockedState) -> None:
                real(journal, epoch, blocked)
                raise ContentionError("gave up", location=journal.location, attempts=1)

            with patch.object(Plans, "block", block), pytest.raises(Blocked):
                step(loader)

    tell(AnswerLost)


def test_should_not_set_a_batch_aside_whose_rows_may_be_in_a_table() -> None:
    """It can be read until the dead letters have their part, not any more when the main table's is due (seed 551)."""

    class DamagedInBetween(Story):
        dead_letters = "dead letters"
        kinds = "x!"

        def tell(self, host: Host) -> None:
            def die(step: str) -> None:
                if step == "committed dead letters":
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
            assert [len(log.commits[-1].rows) for log in self.tables.logs] == [1, 1]

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


def test_should_not_take_a_table_for_replaced_that_was_created_after_its_look() -> None:
    """It looks, and stalls; another loader creates the table, loads a range and plans the next one; then it reads the
    plan, which names a table where it has seen none."""

    class CreatedMeanwhile(Story):
        batches = 2

        def tell(self, host: Host) -> None:
            def die(at: str) -> None:
                if at == "planned" and first.committed == 0:
                    raise KeyboardInterrupt

            first, second = self.loader(host, die), self.loader(host)
            real, looks = LoaderTables.look_at_all, []

            def look(tables: LoaderTables, ledger: Ledger) -> Any:
                found = real(tables, ledger)
                looks.append(tables)
                if looks == [second._tables]:
                    first.open()
                    assert first.step(lambda _: 1, 1) is not None
                    with pytest.raises(KeyboardInterrupt):
                        first.step(lambda _: 1, 1)
                return found

            with patch.object(LoaderTables, "look_at_all", look), patch.object(self.poison, "strikes", lambda: False):
                second.open()
                assert step(second).plan.last == 1

    tell(CreatedMeanwhile)


def test_should_search_again_in_a_single_table_after_an_operator_gave_something_up() -> None:
    """Else a second bad record, which the first had hidden or which a new constraint forbids, would stop the loader for
    ever: the split stands in the plan already."""

    class Another(Story):
        batches = 2

        def tell(self, host: Host) -> None:
            self.world.queue.may_dequeue.clear()  # what was given up is nowhere, for there are no dead letters
            entries = [Record("q", 0, 1, 0, "a").to_bytes(), Record("q", 1, 1, 1, "t").to_bytes()]
            location = f"ingest/{host.clock.new_ulid()}.batch"
            host.store.put(location, encode_batch(entries))
            QueueProducer(host.store, MANIFEST_PATH, host.clock).append_locations([(location, ())])
            journal = Plans(host.store, MANIFEST_PATH, host.clock)

            def blocked(loader: LoadProtocol) -> BlockedState:
                loader.open()
                for _ in range(2):
                    with pytest.raises((CorruptBatch, RowRefused, Blocked)):
                        step(loader)
                released = journal.unblock(skip=True)
                assert released is not None
                return released

            with patch.object(self.poison, "refuses", lambda _row, _rules: False):
                found = blocked(self.loader(host))
            assert (sorted(found.batches), found.entries) == ([0, 1], {})
            found = blocked(self.loader(host))
            assert (sorted(found.batches), list(found.entries[2].values())) == ([0, 1], ["1"])
            loader = self.loader(host)
            loader.open()
            assert step(loader).plan.last == 2
            assert [(row.sequence, row.index) for row in self.tables.logs[0].commits[-1].rows] == [(2, 0)]

    tell(Another)


def test_should_search_on_in_several_tables_after_an_operator_gave_up_what_was_found_so_far() -> None:
    """Where the search is given up, each `unblock --skip` gets further; else the range is stuck for good, for the split
    of the first one stands in the plan."""

    class Many(Story):
        dead_letters = "dead letters"
        batches = 0

        def tell(self, host: Host) -> None:
            for key in range(30):  # each is refused by its table
                location = f"ingest/{host.clock.new_ulid()}.batch"
                host.store.put(location, encode_batch([Record("p", key, 1, key, "t").to_bytes()]))
                QueueProducer(host.store, MANIFEST_PATH, host.clock).append_locations([(location, ())])
            blocks = []
            for _ in range(8):
                loader = self.loader(host)
                loader.open()
                try:
                    done = loader.step(len, 30)
                except RowRefused:
                    try:
                        done = loader.step(len, 30)
                    except Blocked as error:
                        blocks.append(len(error.entries))
                        assert Plans(host.store, MANIFEST_PATH, host.clock).unblock(skip=True) is not None
                        continue
                break
            assert len(blocks) > 1, "one was not enough"
            assert all(blocks), "each of them names something"
            assert done is not None
            assert sorted(done.plan.entries) == list(range(30))
            assert [len(log.commits[-1].rows) for log in self.tables.logs] == [0, 30]

    with patch.object(Search.__init__, "__kwdefaults__", {"trials_max": 15}):
        tell(Many)


def test_should_load_at_the_next_attempt_after_an_older_loader_created_the_table_first() -> None:
    """It stages for a table that is not there; the older one, which had staged before it was fenced, commits."""

    class CreatedFirst(Story):
        def tell(self, host: Host) -> None:
            def stall(at: str) -> None:
                if at == "decoded":
                    raise KeyboardInterrupt

            real, older = SimulatedTarget.stage, []

            def stage(target: SimulatedTarget, rows: Any, txn: Txn, seen: TableState) -> SimulatedFiles:
                if seen.version is None and not older:  # both have looked
                    older.append(replace(txn, epoch=first.epoch))
                    real(target, rows, older[0], seen).commit()
                return real(target, rows, txn, seen)

            first, second = self.loader(host, stall), self.loader(host)
            with patch.object(self.poison, "strikes", lambda: False):
                first.open()
                with pytest.raises(KeyboardInterrupt):
                    step(first)
                second.open()
                with patch.object(SimulatedTarget, "stage", stage), pytest.raises(PASSING):
                    step(second)
                done = step(second)
            assert (done.plan.last, done.commits) == (0, {})
            assert [row.sequence for commit in self.tables.logs[0].commits for row in commit.rows] == [0]

    tell(CreatedFirst)


def test_should_not_adopt_a_range_whose_split_is_forgotten() -> None:
    """A batch is set aside, the dead letters have their part of the range, the ledger is lost before the main table has
    its own. If the batch can be read by then it would be in both."""

    class SplitForgotten(Story):
        dead_letters = "dead letters"

        def tell(self, host: Host) -> None:
            def die(at: str) -> None:
                if at == "committed dead letters":
                    raise KeyboardInterrupt

            first = self.loader(host, die)
            first.open()
            with pytest.raises(CorruptBatch):
                step(first)
            with pytest.raises(KeyboardInterrupt):
                step(first)
            place = Plans(host.store, MANIFEST_PATH, host.clock).location
            lost = host.store.get(place).data
            host.store.delete_many([place])
            adopting = {"adopt": True, "app_id": first.app_id}
            with patch.object(self.poison, "strikes", lambda: False):
                with pytest.raises(LedgerLost, match=r"batches 0\.\.0 .* Put that ledger back") as refused:
                    self.loader(host, **adopting).open()
                assert (refused.value.first, refused.value.last) == (0, 0)
                assert Plans(host.store, MANIFEST_PATH, host.clock).read() is None, "nothing has changed"
                self.ends(host, place, lost, adopting)

        def ends(self, host: Host, place: str, lost: bytes, adopting: dict[str, Any]) -> None:
            host.store.put(place, lost)
            second = self.loader(host, **adopting)
            second.open()
            assert list(step(second).plan.quarantined) == [0]
            assert [len(log.commits[-1].rows) for log in self.tables.logs] == [0, 1]

    class LossAccepted(SplitForgotten):
        def ends(self, host: Host, place: str, lost: bytes, adopting: dict[str, Any]) -> None:
            self.tables.logs[0].witnesses.clear()
            second = self.loader(host, **adopting, accept_gaps=True)
            second.open()
            assert step(second).plan.last == 0
            assert [len(log.commits[-1].rows) for log in self.tables.logs] == [1, 1]

    tell(SplitForgotten)
    tell(LossAccepted)
