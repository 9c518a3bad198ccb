"""The simulator's own parts: what a crash, a stop, a lost reply and Delta's log do there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer.errors import StorageError
from buffer.store.base import Lost, Store, Unknown, Won
from buffer.testing.simulator import Actor, Host, Violation, Weather, World
from buffer_delta.delta.state import NO_TABLE
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import ConcurrentCommit
from buffer_delta.testing import DeltaLog, JobFailed, SimulatedTarget
from buffer_delta.testing.delta_log import Commit, Row

CALM_AT_S = 100.0


class Scripted(Actor):
    """Runs a function, once."""

    def __init__(self, world: World, name: str, script: Callable[[Host], None]) -> None:
        super().__init__(world, name)
        self._script = script
        self._is_done = False

    def run(self, host: Host) -> None:
        if self.life == 1:
            self._script(host)
        self._is_done = True

    @property
    def is_done(self) -> bool:
        return self._is_done


def play(*scripts: Callable[[Host], None], **chances: float) -> World:
    """Run each script as an actor of its own, under these faults."""
    world = World(1, Weather(CALM_AT_S, **chances))
    for index, script in enumerate(scripts):
        world.add(Scripted(world, f"actor{index}", script))
    world.run(drain_s=1000.0)
    return world


def test_should_be_a_store() -> None:
    play(lambda host: None if isinstance(host.store, Store) else pytest.fail("not a Store"))


def test_should_store_swap_list_and_delete() -> None:
    def script(host: Host) -> None:
        store = host.store
        won = store.put_if_absent("a/m", b"1")
        assert isinstance(won, Won)
        assert store.put_if_absent("a/m", b"2") == Lost()
        assert isinstance(store.put_if_match("a/m", b"3", won.version), Won)
        assert store.put_if_match("a/m", b"4", won.version) == Lost()
        assert store.get("a/m").data == b"3"
        for n in range(9):
            store.put(f"a/{n}", b"")
        assert [info.location for info in store.list("a")] == [*(f"a/{n}" for n in range(9)), "a/m"]
        assert store.delete_many(["a/0", "a/none"]) == []
        assert store.get_if_changed("a/m", store.head("a/m").version) is None

    play(script)


def test_should_do_the_write_although_the_reply_is_lost() -> None:
    def script(host: Host) -> None:
        assert isinstance(host.store.put_if_absent("m", b"1"), Unknown)
        with pytest.raises(StorageError):
            host.store.put("n", b"1")

    world = play(script, lost_reply=1.0)
    assert set(world.server.objects) == {"m", "n"}


def test_should_not_do_the_write_when_the_request_is_lost() -> None:
    world = play(lambda host: host.store.put_if_absent("m", b"1"), lost_request=1.0)
    assert not world.server.objects


def test_should_land_a_late_write_after_its_caller_was_told_that_nobody_knows() -> None:
    world = World(1, Weather(CALM_AT_S, late=1.0))
    seen_then: list[dict[str, bytes]] = []

    def script(host: Host) -> None:
        assert isinstance(host.store.put_if_absent("m", b"1"), Unknown)
        seen_then.append(dict(world.server.objects))

    world.add(Scripted(world, "actor", script))
    world.run(drain_s=1000.0)
    assert seen_then == [{}]
    assert world.server.objects == {"m": b"1"}


def test_should_report_a_lost_race_when_a_client_repeats_its_own_write() -> None:
    outcomes = []
    world = play(lambda host: outcomes.append(host.store.put_if_absent("m", b"1")), retried=1.0)
    assert "m" in world.server.objects
    assert outcomes == [Lost()] or isinstance(outcomes[0], Won)


def test_should_run_nothing_of_a_process_after_it_crashed() -> None:
    cleaned_up = []

    def script(host: Host) -> None:
        try:
            host.store.put("m", b"1")
        finally:
            cleaned_up.append(host.process.scheduler.closed)

    play(script, crash_before=1.0)
    assert cleaned_up == [True], "only when the run was over"


def test_should_let_time_pass_for_a_stopped_process() -> None:
    times = []

    def script(host: Host) -> None:
        started = host.clock.monotonic_s()
        host.store.put("m", b"1")
        times.append(host.clock.monotonic_s() - started)

    play(script, stop_after=1.0)
    assert times
    assert times[0] > Weather(0.0).stop_s[0]


def test_should_notice_an_actor_that_never_gets_done() -> None:
    with pytest.raises(Violation, match="stuck"):
        play(lambda host: host.process.scheduler.park())


def test_should_notice_an_error_that_no_actor_may_meet() -> None:
    def script(_host: Host) -> None:
        raise ValueError("surprise")

    with pytest.raises(Violation, match="surprise"):
        play(script)


# Delta's log


def rows(*sequences: int) -> list[Row]:
    return [Row(sequence, 0, b"") for sequence in sequences]


def append(target: SimulatedTarget, last: int, *sequences: int, app_id: str = "app") -> int | None:
    """How many rows went in; None if the commit was skipped."""
    commit = target.stage(rows(*sequences), Txn(app_id, 0, last, 1), target.look(app_id)).commit()
    return None if commit.skipped else commit.rows


def on_delta(script: Callable[[SimulatedTarget, DeltaLog, Host], None], **chances: float) -> DeltaLog:
    log = DeltaLog("table")
    world = World(1, Weather(CALM_AT_S, **chances))
    world.add(Scripted(world, "actor", lambda host: script(SimulatedTarget(world, host, log), log, host)))
    world.run(drain_s=1000.0)
    return log


def test_should_skip_a_txn_version_that_the_table_has_passed() -> None:
    def script(target: SimulatedTarget, log: DeltaLog, _host: Host) -> None:
        assert target.look("app") == NO_TABLE
        assert append(target, 5, 4, 5) == 2
        assert target.look("app").position == 5
        assert append(target, 5, 4, 5) is None
        assert append(target, 3, 3) is None
        assert append(target, 3, 3, app_id="another") == 1
        assert append(target, 9, 1, 2) == 2, "Delta knows nothing of ranges: the same rows under a higher version go in"

    log = on_delta(script)
    assert [commit.txn_version for commit in log.commits if commit.app_id == "app"] == [5, 9]


def test_should_conflict_with_a_concurrent_txn_of_the_same_app_alone() -> None:
    def script(target: SimulatedTarget, log: DeltaLog, host: Host) -> None:
        append(target, 0, 0)
        version = len(log.commits)
        commit = Commit("app", 1, tuple(rows(1)))
        real_put = log.put

        def put_behind(other: Commit) -> Callable[..., list[Commit]]:
            def put(caller: object, at: int, mine: Commit) -> list[Commit]:
                log.put = real_put  # type: ignore[method-assign]  # once
                real_put(host.process, len(log.commits), other)
                return real_put(host.process, at, mine)

            return put

        log.put = put_behind(Commit(None, -1, ()))  # type: ignore[method-assign]
        assert append(target, 1, 1) == 1
        assert log.commits[version + 1] == commit
        log.put = put_behind(Commit("app", 2, ()))  # type: ignore[method-assign]
        with pytest.raises(ConcurrentCommit):
            append(target, 3, 3)
        assert target.look("app").position == 2

    on_delta(script)


def test_should_commit_although_the_answer_is_lost() -> None:
    def script(target: SimulatedTarget, log: DeltaLog, _host: Host) -> None:
        with pytest.raises(JobFailed):
            append(target, 0, 0)

    log = on_delta(script, lost_reply=1.0)
    assert len(log.commits) <= 1
