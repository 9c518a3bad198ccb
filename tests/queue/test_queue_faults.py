"""Lost replies, false refusals, late landings: an append happens once or is reported, never twice, never silently.

Every test scripts what the store does wrong, and looks at the manifest afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from buffer.attempts import AppendGroup, Attempt, Verdict, decide
from buffer.cas import CAS_ATTEMPTS_MAX, Snapshot
from buffer.errors import (
    AppendOutcomeUnknown,
    ContentionError,
    ManifestLost,
    StorageError,
    StoreUnusable,
    Throttled,
)
from buffer.manifest import Manifest
from buffer.store import Lost, Store, open_store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.queue.queue_support import (
    PATH,
    Written,
    append,
    consumer,
    manifest_in,
    memory,
    named,
    nothing,
    producer,
    queued,
)

FOREVER = 10**6


@pytest.fixture(params=["memory", "local"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return memory() if request.param == "memory" else open_store(str(tmp_path / "store"))


@pytest.fixture(params=["first append", "later append"])
def before(request: pytest.FixtureRequest, inner: Store) -> list[tuple[int, str]]:
    """What is in the queue already: the first append creates the manifest, later ones replace it."""
    if request.param == "later append":
        append(inner, "earlier")
    return queued(inner)


def op_for(before: list[tuple[int, str]]) -> str:
    return "put_if_match" if before else "put_if_absent"


def behind(before: list[tuple[int, str]], *locations: str) -> list[tuple[int, str]]:
    return before + list(enumerate(locations, len(before)))


class TestDecide:
    """Each verdict, on every shape of manifest that can lead to it."""

    BASE = Manifest.empty().append("old")
    SEEN = Snapshot(BASE.to_bytes(), "v1")
    GROUP = ("x", "y", "z")
    ATTEMPT = Attempt(SEEN, 1, GROUP, BASE.append_all([(name, ()) for name in GROUP]))
    LANDED = ATTEMPT.result

    @pytest.mark.parametrize(
        ("version", "manifest", "verdict"),
        [
            ("v1", BASE, Verdict.PENDING),
            ("v2", LANDED, Verdict.LANDED),
            ("v2", LANDED.append("later").claim(), Verdict.LANDED),
            ("v2", LANDED.dequeue(0), Verdict.LANDED),
            ("v2", LANDED.dequeue(1), Verdict.LANDED),
            ("v2", LANDED.dequeue(2), Verdict.LANDED),
            ("v2", LANDED.dequeue(3), Verdict.UNDECIDABLE),
            ("v2", LANDED.dequeue(3).append("later"), Verdict.UNDECIDABLE),
            ("v2", BASE.claim(), Verdict.DEAD),
            ("v2", BASE.dequeue(0), Verdict.DEAD),
            ("v2", BASE.append("p"), Verdict.DEAD),
            ("v2", BASE.append("p").append("q"), Verdict.DEAD),
            ("v2", BASE.append("p").append("q").append("r"), Verdict.DEAD),
            ("v2", BASE.append("p").append("q").append("r").append("s").dequeue(2), Verdict.DEAD),
            ("v2", BASE.append("p").append("q").dequeue(2), Verdict.DEAD),
            ("v2", BASE.append("p").append("q").append("r").dequeue(3), Verdict.UNDECIDABLE),
        ],
    )
    def test_should_judge_an_attempt(self, version: str, manifest: Manifest, verdict: Verdict) -> None:
        assert decide(self.ATTEMPT, version, manifest) is verdict

    def test_should_find_a_first_append_pending_while_there_is_no_manifest(self) -> None:
        attempt = Attempt(Snapshot(None, None), 0, ("x",), Manifest.empty().append("x"))
        assert decide(attempt, None, Manifest.empty()) is Verdict.PENDING
        assert decide(attempt, "v1", Manifest.empty().claim()) is Verdict.DEAD
        assert decide(attempt, "v1", Manifest.empty().append("x")) is Verdict.LANDED


class TestOneFault:
    @pytest.mark.parametrize("answer", [None, Lost, Throttled], ids=["error", "precondition failed", "429"])
    @pytest.mark.parametrize(
        ("when", "times"),
        [(Fault.before, 1), (Fault.before, 3), (Fault.after, 1)],
        ids=["before", "before, three times", "after"],
    )
    def test_should_append_once(
        self, inner: Store, before: list[tuple[int, str]], when: Callable[..., Fault], answer, times: int
    ) -> None:
        store = FaultyStore(inner, [when(op_for(before), answer, times=times)])
        drawn = 0

        def draw() -> AppendGroup:
            nonlocal drawn
            drawn += 1
            return AppendGroup(named("a", "b"))

        assert producer(store).append(draw) == range(len(before), len(before) + 2)
        assert queued(inner) == behind(before, "a", "b")
        assert drawn == 1  # no attempt ever died: nothing new may be drawn
        assert store.unused == []

    def test_should_repeat_the_very_same_write_while_it_may_still_land(
        self, inner: Store, before: list[tuple[int, str]]
    ) -> None:
        store = Written(FaultyStore(inner, [Fault.before(op_for(before), times=3)]))
        producer(store).append_locations(named("a"))
        assert len(store.writes) == 4
        assert len(set(store.writes)) == 1

    @pytest.mark.parametrize("answer", [None, Lost])
    @pytest.mark.parametrize("after_calls", [1, 2, 3, 4])
    def test_should_append_once_when_the_write_lands_late(
        self, inner: Store, before: list[tuple[int, str]], answer, after_calls: int
    ) -> None:
        store = FaultyStore(inner, [Fault.late(op_for(before), answer, after_calls=after_calls)])
        queue = producer(store)
        assert queue.append_locations(named("a")) == range(len(before), len(before) + 1)
        store.land()
        assert queued(inner) == behind(before, "a")
        assert queue.append_locations(named("b")) == range(len(before) + 1, len(before) + 2)
        assert queued(inner) == behind(before, "a", "b")

    def test_should_append_once_when_the_write_lands_after_the_repeat(
        self, inner: Store, before: list[tuple[int, str]]
    ) -> None:
        store = FaultyStore(inner, [Fault.late(op_for(before))])
        producer(store).append_locations(named("a"))
        append(inner, "other")
        assert store.pending == 1
        store.land()
        assert queued(inner) == behind(before, "a", "other")

    def test_should_read_through_errors_while_a_write_is_undecided(
        self, inner: Store, before: list[tuple[int, str]]
    ) -> None:
        read = "get_if_changed" if before else "get"
        faults = [Fault.after(op_for(before)), Fault.before(read, skip=0 if before else 1, times=5, location=PATH)]
        store = FaultyStore(inner, faults)
        assert producer(store).append_locations(named("a")) == range(len(before), len(before) + 1)
        assert (queued(inner), store.unused) == (behind(before, "a"), [])

    def test_should_take_a_retryable_error_for_an_unknown_outcome(self, inner: Store) -> None:
        """A store that raises where it should return Unknown: the write may have landed all the same."""

        class Raising(Written):
            def put_if_match(self, location: str, data: bytes, version: str):
                outcome = super().put_if_match(location, data, version)
                if len(self.writes) == 1:
                    raise Throttled("429", location=location, retryable=True)
                return outcome

        append(inner, "earlier")
        assert producer(Raising(inner)).append_locations(named("a")) == range(1, 2)
        assert queued(inner) == [(0, "earlier"), (1, "a")]


class TestDeadAttempt:
    """Only when an attempt is surely dead may batches join or get new names."""

    def test_should_draw_again_only_when_the_attempt_is_dead(self, inner: Store) -> None:
        append(inner, "earlier")
        store = Written(FaultyStore(inner, [Fault.before("put_if_match", times=2)]))
        store.interfere = lambda: len(store.writes) == 3 and append(inner, "other")
        groups = iter([("a",), ("a2", "b2")])
        drawn: list[tuple[str, ...]] = []

        def draw() -> AppendGroup:
            drawn.append(next(groups))
            return AppendGroup(named(*drawn[-1]))

        # Two lost requests (pending: same bytes), then a race that is lost, then the renamed, larger group.
        assert producer(store).append(draw) == range(2, 4)
        assert drawn == [("a",), ("a2", "b2")]
        assert queued(inner) == [(0, "earlier"), (1, "other"), (2, "a2"), (3, "b2")]
        assert store.writes[0] == store.writes[1] == store.writes[2] != store.writes[3]

    @pytest.mark.parametrize("meanwhile", ["append", "claim", "dequeue"])
    def test_should_find_an_attempt_dead_once_the_manifest_moved(self, inner: Store, meanwhile: str) -> None:
        append(inner, "earlier")
        owner = consumer(inner)
        owner.claim()

        def interfere() -> None:
            if len(store.writes) == 1:
                {
                    "append": lambda: append(inner, "other"),
                    "claim": owner.claim,
                    "dequeue": lambda: owner.dequeue(0),
                }[meanwhile]()

        store = Written(inner, interfere)
        assert producer(store).append_locations(named("a")) == range(
            1 + (meanwhile == "append"), 2 + (meanwhile == "append")
        )
        assert [location for _, location in queued(inner)] == {
            "append": ["earlier", "other", "a"],
            "claim": ["earlier", "a"],
            "dequeue": ["a"],
        }[meanwhile]

    def test_should_not_let_a_dead_attempt_land_later(self, inner: Store) -> None:
        append(inner, "earlier")
        late = FaultyStore(inner, [Fault.late("put_if_match")])
        store = Written(late)
        store.interfere = lambda: len(store.writes) == 2 and append(inner, "other")
        names = iter(["a", "renamed"])
        assert producer(store).append(lambda: AppendGroup(named(next(names)))) == range(2, 3)
        late.land()
        assert queued(inner) == [(0, "earlier"), (1, "other"), (2, "renamed")]

    def test_should_end_with_nothing_in_flight_when_draw_fails_the_second_time(self, inner: Store) -> None:
        append(inner, "earlier")
        store = Written(inner, lambda: append(inner, "other"))
        groups = iter([AppendGroup(named("a"))])

        with pytest.raises(StopIteration):
            producer(store).append(lambda: next(groups))
        assert queued(inner) == [(0, "earlier"), (1, "other")]


class TestUndecidable:
    def test_should_say_so_when_all_slots_were_dequeued(self, inner: Store) -> None:
        append(inner, "earlier")
        owner = consumer(inner)
        owner.claim()
        store = FaultyStore(inner, [Fault.after("put_if_match")])
        taken = Written(store, then=lambda: owner.dequeue(2))
        with pytest.raises(AppendOutcomeUnknown, match="2 batches from 'a' on may or may not be in") as caught:
            append(taken, "a", "b")
        assert (caught.value.locations, caught.value.expected_sequence) == (("a", "b"), 1)
        assert caught.value.location == PATH
        assert isinstance(caught.value.__cause__, StorageError)
        assert len(taken.writes) == 1
        assert (queued(inner), manifest_in(inner).next_sequence) == ([], 3)

    def test_should_decide_by_any_slot_that_is_left(self, inner: Store) -> None:
        append(inner, "earlier")
        owner = consumer(inner)
        owner.claim()
        store = Written(FaultyStore(inner, [Fault.after("put_if_match")]), then=lambda: owner.dequeue(1))
        assert producer(store).append_locations(named("a", "b")) == range(1, 3)
        assert queued(inner) == [(2, "b")]

    def test_should_not_write_names_that_a_collector_may_have_taken(self, inner: Store) -> None:
        clock = ManualClock()
        store = Written(FaultyStore(inner, [Fault.before("put_if_absent")]), lambda: clock.advance(11))
        with pytest.raises(AppendOutcomeUnknown):
            producer(store, clock).append(lambda: AppendGroup(named("a"), valid_until_s=10))
        assert len(store.writes) == 1
        assert queued(inner) == []

    @pytest.mark.parametrize("fault", [Fault.after("put_if_absent"), Fault.after("put_if_absent", Lost)])
    def test_should_trust_a_landed_write_whatever_its_age(self, inner: Store, fault: Fault) -> None:
        clock = ManualClock()
        store = Written(FaultyStore(inner, [fault]), lambda: clock.advance(11))
        queue = producer(store, clock)
        assert queue.append(lambda: AppendGroup(named("a"), valid_until_s=10)) == range(1)

    def test_should_draw_new_names_when_a_stale_attempt_is_dead(self, inner: Store) -> None:
        clock = ManualClock()

        def interfere() -> None:
            if len(store.writes) == 1:
                clock.advance(11)
                append(inner, "other")

        store = Written(inner, interfere)
        names = iter(["old", "new"])
        queue = producer(store, clock)
        assert queue.append(lambda: AppendGroup(named(next(names)), clock.monotonic_s() + 10)) == range(1, 2)
        assert queued(inner) == [(0, "other"), (1, "new")]

    def test_should_not_hide_a_lost_manifest_behind_an_undecided_append(self, inner: Store) -> None:
        append(inner, "earlier")
        store = Written(FaultyStore(inner, [Fault.after("put_if_match")]), then=lambda: inner.delete_many([PATH]))
        with pytest.raises(ManifestLost):
            append(store, "a")


class TestGivingUp:
    @pytest.mark.parametrize("answer", [None, Lost, Throttled])
    def test_should_not_call_it_contention_while_the_write_may_land(self, inner: Store, answer) -> None:
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.before("put_if_match", answer, times=FOREVER)])
        with pytest.raises(AppendOutcomeUnknown) as caught:
            append(store, "a")
        assert caught.value.expected_sequence == 1
        writes = [call for call in store.history if call.op == "put_if_match"]
        assert len(writes) == CAS_ATTEMPTS_MAX
        assert queued(inner) == [(0, "earlier")]

    def test_should_really_not_know(self, inner: Store) -> None:
        """The reason for the rule above: the request does land in the end."""
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.late("put_if_match", times=FOREVER)])
        with pytest.raises(AppendOutcomeUnknown):
            append(store, "a")
        store.land()
        assert queued(inner) == [(0, "earlier"), (1, "a")]

    def test_should_call_it_contention_only_when_surely_nothing_happened(self, inner: Store) -> None:
        append(inner, "earlier")
        store = Written(inner, lambda: append(inner, "other"))
        queue = producer(store)
        with pytest.raises(ContentionError, match=f"after {CAS_ATTEMPTS_MAX} attempts") as caught:
            queue.append_locations(named("a"))
        assert (caught.value.location, caught.value.attempts) == (PATH, CAS_ATTEMPTS_MAX)
        assert "a" not in [location for _, location in queued(inner)]
        store.interfere = nothing
        queue.append_locations(named("a"))
        assert [location for _, location in queued(inner)].count("a") == 1

    def test_should_stop_at_the_deadline(self, inner: Store) -> None:
        append(inner, "earlier")
        clock = ManualClock()
        store = Written(inner, lambda: (clock.advance(25), append(inner, "other")))
        with pytest.raises(ContentionError, match="after 3 attempts within 60 s"):
            producer(store, clock).append_locations(named("a"))
        assert len(store.writes) == 3

    @pytest.mark.parametrize("fault", [Fault.after("put_if_match"), Fault.after("put_if_match", Lost)])
    def test_should_look_once_more_before_giving_up(self, inner: Store, fault: Fault) -> None:
        append(inner, "earlier")
        clock = ManualClock()
        store = Written(FaultyStore(inner, [fault]), lambda: clock.advance(61))
        assert producer(store, clock).append_locations(named("a")) == range(1, 2)
        assert queued(inner) == [(0, "earlier"), (1, "a")]

    def test_should_not_know_when_the_last_look_fails(self, inner: Store) -> None:
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.after("put_if_match"), Fault.before("get_if_changed", times=FOREVER)])
        with pytest.raises(AppendOutcomeUnknown) as caught:
            append(store, "a")
        assert isinstance(caught.value.__cause__, StorageError)
        assert queued(inner) == [(0, "earlier"), (1, "a")]

    def test_should_raise_a_refusal_as_it_is_when_nothing_was_sent_before(self, inner: Store) -> None:
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.before("put_if_match", StoreUnusable)])
        with pytest.raises(StoreUnusable):
            append(store, "a")
        assert queued(inner) == [(0, "earlier")]

    @pytest.mark.parametrize("read_fails", [False, True])
    def test_should_not_know_when_refused_after_an_undecided_write(self, inner: Store, read_fails: bool) -> None:
        """The permission was taken away between two requests: the first one may still land."""
        append(inner, "earlier")
        refused = Fault.before("get_if_changed" if read_fails else "put_if_match", StoreUnusable)
        store = FaultyStore(inner, [Fault.late("put_if_match"), refused])
        with pytest.raises(AppendOutcomeUnknown) as caught:
            append(store, "a")
        assert isinstance(caught.value.__cause__, StoreUnusable)
        store.land()
        assert queued(inner) == [(0, "earlier"), (1, "a")]
