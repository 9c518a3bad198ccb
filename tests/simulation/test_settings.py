"""Settings change, tables are moved, operators act in between: short stories."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import pytest

from buffer.errors import QueueBound
from buffer.testing.simulator import Host
from buffer.testing.simulator.world import MANIFEST_PATH
from buffer_delta.delta.state import TableState
from buffer_delta.errors import Blocked, RouteChanged
from buffer_delta.load.plans import Plans
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.testing.delta_log import DeltaLog, SimulatedTarget
from buffer_delta.testing.work import CannotPrepare
from tests.simulation.stories import step, tell
from tests.simulation.test_joining import Joining, Upgraded, put_batch, stop_at

MOVED = ("moved", "second", "dead letters")


class Failing(Joining):
    """One entry fails every time."""

    kinds = "ap"

    def block(self, host: Host, tables: tuple[str, ...]) -> None:
        loader = self.loader(host, tables=tables)
        loader.open()
        with pytest.raises(CannotPrepare):
            step(loader)
        with pytest.raises(Blocked):
            step(loader)

    def set_aside(self, host: Host) -> None:
        loader = self.loader(host)
        loader.open()
        with pytest.raises(CannotPrepare):
            step(loader)
        step(loader)
        assert self.rows() == {"main": [(0, 0)], "second": [], "dead letters": [(0, 1)]}

    @staticmethod
    def operator(host: Host) -> Plans:
        return Plans(host.store, MANIFEST_PATH, host.clock)


def test_should_not_drop_what_was_given_up_where_the_dead_letters_joined_too_late() -> None:
    """The range goes to the main table alone, so what is left out of that one would be nowhere."""

    class GivenUp(Failing):
        def tell(self, host: Host) -> None:
            self.block(host, ("main",))
            self.operator(host).unblock(skip=True)
            with pytest.raises(RouteChanged, match="would not get that"):
                self.loader(host).open()
            assert self.operator(host).replan() is not None
            self.set_aside(host)

    tell(GivenUp)


def test_should_leave_out_what_was_given_up_where_there_are_no_dead_letters() -> None:
    class LeftOut(Failing):
        def tell(self, host: Host) -> None:
            self.world.queue.may_dequeue.clear()
            self.block(host, ("main",))
            self.operator(host).unblock(skip=True)
            loader = self.loader(host, tables=("main", "second"))
            loader.open()
            step(loader)
            self.loader(host).open()  # it is loaded: nothing waits for the dead letters any more
            assert self.rows() == {"main": [(0, 0)], "second": [], "dead letters": []}

    tell(LeftOut)


def test_should_free_a_blocked_range_of_several_tables_for_dead_letters_that_join() -> None:
    class Freed(Failing):
        def tell(self, host: Host) -> None:
            self.block(host, ("main", "second"))
            assert self.operator(host).replan() is not None
            self.set_aside(host)

    tell(Freed)


def test_should_not_take_a_loader_beside_it_for_a_gap_where_adopt_is_left_on() -> None:
    """The other one commits and acks right after our first look at the table."""

    class Beside(Joining):
        kinds = "a"

        def tell(self, host: Host) -> None:
            other = self.loader(host, tables=("main",), app_id="app")
            other.open()
            ours = self.loader(host, tables=("main",), app_id="app", adopt=True)
            real = SimulatedTarget.look
            looks: list[str] = []

            def look(target: SimulatedTarget, app_id: str) -> TableState:
                state = real(target, app_id)
                looks.append(target.name)
                if len(looks) == 1:
                    step(other)
                return state

            with patch.object(SimulatedTarget, "look", look):
                ours.open()
            assert ours.committed == 0

    tell(Beside)


def test_should_know_a_table_that_was_moved_while_the_queue_was_upgraded() -> None:
    """The ledger of the release before has all tables by name, and nothing is where the main one was."""

    class Moved(Upgraded):
        def tell(self, host: Host) -> None:
            older = self.older(host)
            older.open()
            step(older)
            put_batch(host, 1, "abx")
            step(older)
            self.tables.log("main").name = "moved"
            newer = self.loader(host, tables=MOVED)
            newer._tables.open_table = lambda name: SimulatedTarget(self.world, host, DeltaLog(name))
            newer.open()
            assert (newer.committed, step(newer)) == (1, None)

    tell(Moved)


@pytest.mark.parametrize("dies_at", ["committed main", None])
def test_should_know_a_table_that_was_moved_after_its_first_range(dies_at: str | None) -> None:
    """No plan has its id yet. Acked or not, it holds the range, and no other table of that app does."""

    class Moved(Joining):
        kinds = "a"

        def tell(self, host: Host) -> None:
            first = self.loader(host, *([stop_at(dies_at)] if dies_at else []), tables=("main",))
            first.open()
            with pytest.raises(KeyboardInterrupt) if dies_at else nullcontext():
                step(first)
            other = self.loader(host, tables=("second",))
            with pytest.raises(QueueBound):
                other.open()
            self.tables.log("main").name = "moved"
            put_batch(host, 1, "a")
            moved = self.loader(host, tables=("moved",))
            moved.open()
            assert moved.committed == 0
            step(moved)
            self.loader(host, tables=("moved",)).open()

    tell(Moved)


def test_should_know_a_table_that_was_moved_after_gaps_were_accepted() -> None:
    """Its range is finished for the main table alone, under the names that the ledger has."""

    class Moved(Joining):
        kinds = "a"

        def tell(self, host: Host) -> None:
            self.load(self.loader(host, tables=("main",)))
            put_batch(host, 1, "a")
            dying = self.loader(host, stop_at("planned"), tables=("main",))
            with pytest.raises(KeyboardInterrupt):
                self.load(dying)
            self.tables.log("main").name = "moved"
            self.load(self.loader(host, tables=MOVED, accept_gaps=True))
            self.loader(host, tables=MOVED).open()

        @staticmethod
        def load(loader: LoadProtocol) -> None:
            loader.open()
            step(loader)

    tell(Moved)
