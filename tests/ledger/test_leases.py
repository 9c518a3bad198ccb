"""Each verb of a leases section by example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buffer.config import LeaseConfig
from buffer.errors import (
    AckHoleCapExceeded,
    CorruptLedger,
    InFlightCapExceeded,
    InvalidConfig,
    InvalidHandle,
    InvalidInput,
    QueueFull,
)
from buffer.ledger import lease_rules as rules
from buffer.ledger import parking
from buffer.ledger.from_workers import check_free
from buffer.ledger.lease_rules import Ack, Grant, Nack
from buffer.ledger.lease_steps import RECEIPT_KEEP_MS, RECEIPTS_MAX, Stamp, phase
from buffer.ledger.leases import Handle, LeaseLedger, Leases, Phase
from buffer.ledger.parking import finish_parking, park, resume_parking, unblock

TIMEOUT_MS = 1_000
DEAD = "dead/manifest"


class Team:
    """Workers on one section, one after the other; each write goes through JSON."""

    def __init__(self, size: int = 5, **config: Any) -> None:
        values = {"visibility_timeout_ms": TIMEOUT_MS, "max_delivery_attempts": 2, **config}
        self.now_ms = 10_000
        self.numbers = 0
        self.queue = range(size)
        self.section = rules.opened(LeaseConfig.from_dict(values), self.by(), epoch=1, first_sequence=0)

    def by(self, worker: str = "w") -> Stamp:
        self.numbers += 1
        return Stamp(worker, self.numbers, self.now_ms)

    def write(self, section: Leases) -> None:
        self.section = Leases.from_json(json.loads(json.dumps(section.to_json())))
        assert self.section == section

    def consume(self, size: int = 1, acks: list[Handle] | None = None) -> Grant:
        section, grant = rules.consume(self.section, self.by(), self.queue, size, [Ack(h) for h in acks or []])
        self.write(section)
        return grant

    def lease(self, size: int = 1) -> list[Handle]:
        return [delivery.handle for delivery in self.consume(size).deliveries]

    def ack(self, *handles: Handle) -> None:
        self.write(rules.ack(self.section, self.by(), [Ack(handle) for handle in handles]))

    def nack(self, *handles: Handle, delay_ms: int = 0, reason: str = "") -> None:
        self.write(rules.nack(self.section, self.by(), [Nack(handle, delay_ms, reason) for handle in handles]))

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.nack(*self.lease())

    def phases(self) -> list[str]:
        return [phase(self.section, sequence, self.now_ms).value for sequence in self.queue]


def sequences(handles: list[Handle]) -> list[int]:
    return [handle.sequence for handle in handles]


# Leases and time


def test_should_grant_one_lease_over_all_that_it_returns() -> None:
    team = Team()
    grant = team.consume(3)
    assert sequences([d.handle for d in grant.deliveries]) == [0, 1, 2]
    assert len({d.handle.lease_id for d in grant.deliveries}) == 1
    assert [d.count for d in grant.deliveries] == [1, 1, 1]
    assert grant.deliveries[0].until_ms == team.now_ms + TIMEOUT_MS == grant.changes_at_ms


def test_should_give_what_is_leased_to_nobody_else() -> None:
    team = Team()
    assert sequences(team.lease(2)) == [0, 1]
    assert sequences(team.lease(2)) == [2, 3]


def test_should_write_nothing_when_there_is_nothing_to_say() -> None:
    team = Team(size=1)
    team.lease()
    section, grant = rules.consume(team.section, team.by(), team.queue, 1)
    assert section is team.section
    assert grant.deliveries == ()


def test_should_deliver_again_when_the_lease_has_run_out_and_count_it() -> None:
    team = Team(size=1)
    (first,) = team.lease()
    team.now_ms += TIMEOUT_MS - 1
    assert team.lease() == []
    team.now_ms += 1
    (again,) = team.consume().deliveries
    assert again.count == 2
    assert again.expired == first.lease_id


@pytest.mark.parametrize("verb", ["ack", "nack", "snooze", "extend"])
def test_should_refuse_a_handle_whose_lease_ran_out_even_if_nobody_took_over(verb: str) -> None:
    team = Team()
    handles = team.lease(2)
    team.now_ms += TIMEOUT_MS
    before = team.section
    calls = {
        "ack": lambda: team.ack(*handles),
        "nack": lambda: team.nack(*handles),
        "snooze": lambda: rules.snooze(team.section, team.by(), handles),
        "extend": lambda: rules.extend(team.section, team.by(), handles, 10),
    }
    with pytest.raises(InvalidHandle) as caught:
        calls[verb]()
    assert caught.value.handles == tuple((h.lease_id, h.sequence) for h in handles)
    assert team.section is before


def test_should_move_nothing_when_one_handle_of_many_does_not_hold() -> None:
    team = Team()
    (old,) = team.lease()
    team.nack(old)
    held = team.lease(2)
    with pytest.raises(InvalidHandle) as caught:
        team.ack(*held, old)
    assert caught.value.handles == ((old.lease_id, old.sequence),)
    assert team.phases()[:2] == ["leased", "leased"]


def test_should_never_let_time_run_backwards() -> None:
    team = Team(size=1)
    team.lease()
    team.now_ms += TIMEOUT_MS
    (second,) = team.lease()
    team.now_ms -= 10 * TIMEOUT_MS
    assert team.lease() == []
    team.ack(second)
    assert team.section.time_ms == 10_000 + TIMEOUT_MS


def test_should_extend_and_never_shorten() -> None:
    team = Team(size=1)
    handles = team.lease()
    for additional_ms, until_ms in ((10, 11_000), (5_000, 15_000), (0, 15_000)):
        team.write(rules.extend(team.section, team.by(), handles, additional_ms))
        assert team.section.batches[0].until_ms == until_ms
    assert team.section.batches[0].count == 1


@pytest.mark.parametrize("wrong_ms", [-1, 1 << 60, 1500.5, True, "1", None])
def test_should_refuse_a_time_that_cannot_be_meant(wrong_ms: Any) -> None:
    team = Team()
    handles = team.lease()
    with pytest.raises(InvalidInput, match="ms is"):
        rules.extend(team.section, team.by(), handles, wrong_ms)
    with pytest.raises(InvalidInput, match="ms is"):
        team.nack(*handles, delay_ms=wrong_ms)


# Acks


def test_should_move_the_frontier_when_the_prefix_is_finished() -> None:
    team = Team()
    handles = team.lease(4)
    team.ack(handles[1], handles[3])
    assert (team.section.finished_through, team.section.finished) == (-1, ((1, 1), (3, 3)))
    team.ack(handles[0])
    assert (team.section.finished_through, team.section.finished) == (1, ((3, 3),))
    team.ack(handles[2])
    assert (team.section.finished_through, team.section.finished, team.section.batches) == (3, (), {})


def test_should_ack_and_consume_in_one_write() -> None:
    team = Team()
    grant = team.consume(2, acks=team.lease(2))
    assert team.section.finished_through == 1
    assert sequences([d.handle for d in grant.deliveries]) == [2, 3]


def test_should_keep_the_acks_when_a_cap_stops_the_consume() -> None:
    team = Team(max_in_flight=1)
    handles = team.lease()
    blocked = team.consume(1)
    assert isinstance(blocked.stopped, InFlightCapExceeded)
    assert (blocked.stopped.cap, blocked.stopped.count) == (1, 1)
    assert team.consume(1, acks=handles).deliveries
    assert team.section.finished_through == 0


def test_should_owe_the_rest_of_a_batch_only() -> None:
    team = Team(size=1)
    (handle,) = team.lease()
    bad = (3, 500, 997)
    good = tuple(i for i in range(1_000) if i not in bad)
    team.write(rules.ack(team.section, team.by(), [Ack(handle, good, 1_000)]))
    assert team.section.batches[0].owed == ((3, 3), (500, 500), (997, 997))
    team.nack(handle)
    (again,) = team.consume().deliveries
    assert again.owed == ((3, 3), (500, 500), (997, 997))
    team.write(rules.ack(team.section, team.by(), [Ack(again.handle, (3, 4), 1_000), Ack(again.handle, (500,), 1_000)]))
    assert team.section.batches[0].owed == ((997, 997),)
    team.write(rules.ack(team.section, team.by(), [Ack(again.handle, (997,), 1_000)]))
    assert team.section.finished_through == 0


def test_should_owe_all_when_no_entry_is_acked() -> None:
    team = Team()
    (handle,) = team.lease()
    team.write(rules.ack(team.section, team.by(), [Ack(handle, (), 4)]))
    team.nack(handle)
    assert team.section.batches[0].owed is None
    check_free(team.section, team.now_ms)  # nothing is done of it: a loader may have it


@pytest.mark.parametrize(("entries", "count"), [((3,), 3), ((-1,), 3), ((0,), None), ((0,), 0)])
def test_should_refuse_entries_that_the_batch_has_not(entries: tuple[int, ...], count: int | None) -> None:
    team = Team()
    (handle,) = team.lease()
    with pytest.raises(InvalidInput):
        rules.ack(team.section, team.by(), [Ack(handle, entries, count)])


# Giving back


def test_should_wait_for_each_delay_of_its_own() -> None:
    team = Team(size=2)
    one, two = team.lease(2)
    team.write(rules.nack(team.section, team.by(), [Nack(one, 500), Nack(two, 100)]))
    assert team.phases() == ["delayed", "delayed"]
    team.now_ms += 100
    assert sequences(team.lease(2)) == [1]
    team.now_ms += 400
    assert sequences(team.lease(2)) == [0]


def test_should_keep_reasons_that_every_reader_can_print() -> None:
    """A handler's error may quote the name of an undecodable file; an operator's word may hold half a character."""
    team = Team(size=2, dlq="dead/m", dlq_strategy="skip")
    team.nack(*team.lease(), reason="no \udcff " + "\ud83d" + "\ude00")
    assert team.section.batches[0].reason == "no \ufffd \U0001f600"
    section, _ = parking.park(team.section, team.by(), team.queue, 1, "half \ud83d")
    team.write(section)
    assert team.section.batches[1].reason == "half \ufffd"
    json.dumps(team.section.to_json(), ensure_ascii=False).encode("utf-8")


def test_should_allow_one_attempt_more_for_each_snooze_and_count_all_leases() -> None:
    team = Team(size=1)
    for _ in range(10):
        handles = team.lease()
        team.write(rules.snooze(team.section, team.by(), handles))
    team.fail(2)
    assert team.section.batches[0].count == 12
    assert team.consume().blocked == (0,)


# Used up


def test_should_tell_of_every_lease_that_ran_out_delivered_again_or_judged() -> None:
    team = Team(size=2, max_delivery_attempts=1)
    team.lease(1)
    team.now_ms += TIMEOUT_MS
    assert team.consume(2).ran_out == 1, "blocked, and not delivered"
    team.now_ms += TIMEOUT_MS
    assert team.consume(2).ran_out == 1
    assert team.consume(2).ran_out == 0, "each once"


def test_should_judge_only_at_the_next_consume() -> None:
    team = Team(size=2)
    team.fail(2)
    assert team.phases() == ["available", "available"]
    grant = team.consume()
    assert grant.blocked == (0,)
    assert sequences([d.handle for d in grant.deliveries]) == [1]
    assert team.phases() == ["blocked", "leased"]


def test_should_pin_the_frontier_when_blocked_and_go_on() -> None:
    team = Team(size=3)
    team.fail(2)
    team.ack(*team.lease(2))
    assert team.section.finished_through == -1
    assert team.section.finished == ((1, 2),)


def test_should_grant_attempts_when_unblocked() -> None:
    team = Team(size=1)
    team.fail(2)
    team.consume()
    team.write(unblock(team.section, team.by(), 0, attempts=2))
    team.fail(2)
    assert team.consume().blocked == (0,)
    assert team.section.batches[0].count == 4


def test_should_refuse_to_unblock_what_is_not() -> None:
    team = Team()
    with pytest.raises(InvalidInput, match="not blocked but available"):
        unblock(team.section, team.by(), 0)
    with pytest.raises(InvalidInput, match="attempts is 0"):
        unblock(team.section, team.by(), 0, attempts=0)


def test_should_halt_the_line_at_a_blocked_head_when_order_is_required() -> None:
    team = Team(ordering_required=True)
    assert sequences(team.lease(3)) == [0]
    assert team.lease(3) == []
    team.now_ms += TIMEOUT_MS
    team.fail(1)
    assert team.consume(3).blocked == (0,)
    assert team.lease(3) == []
    team.write(unblock(team.section, team.by(), 0))
    head = team.lease(3)
    grant = team.consume(3, acks=head)
    assert sequences([d.handle for d in grant.deliveries]) == [1]


def test_should_wait_for_older_leases_when_order_becomes_required() -> None:
    team = Team()
    handles = team.lease(2)
    team.nack(handles[0])
    team.write(rules.configure(team.section, team.by(), team.section.config.replace(ordering_required=True)))
    assert team.lease() == []
    team.ack(handles[1])
    assert sequences(team.lease()) == [0]


def test_should_refuse_settings_that_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match="skipping breaks the order"):
        LeaseConfig(ordering_required=True, dlq_strategy="skip", dlq=DEAD)
    for strategy in ("skip", "block_and_dlq"):
        with pytest.raises(InvalidConfig, match="dlq=None is not allowed"):
            LeaseConfig(dlq_strategy=strategy)


# Parking


def test_should_park_under_one_ordinal_and_finish() -> None:
    team = Team(size=2, dlq_strategy="skip", dlq=DEAD)
    team.fail(1)
    team.nack(*team.lease(), reason="no such customer")
    grant = team.consume(2)
    (order,) = grant.orders
    assert (order.sequence, order.ordinal, order.count, order.reason) == (0, 1, 2, "no such customer")
    assert grant.deliveries == ()
    assert sequences(team.lease(2)) == [1]  # the others go on
    parker = team.section.parker
    assert parker is not None
    team.write(finish_parking(team.section, team.by(), parker, [order]))
    assert team.section.finished_through == 0
    assert team.section.parker is None


def test_should_repeat_the_same_ordinals_when_a_parker_died() -> None:
    team = Team(size=2, dlq_strategy="skip", dlq=DEAD)
    handles = team.lease(2)
    team.nack(*handles)
    team.nack(*team.lease(2))
    first = team.consume(2)
    dead = team.section.parker
    assert [(o.sequence, o.ordinal) for o in first.orders] == [(0, 1), (1, 2)]
    assert team.consume(2) == Grant(changes_at_ms=team.now_ms + TIMEOUT_MS)
    team.now_ms += TIMEOUT_MS
    assert team.consume(2).orders == first.orders
    # The dead one wakes up: what it knows is true, but the turn is not its own any more.
    assert dead is not None
    team.write(finish_parking(team.section, team.by(), dead, first.orders[:1]))
    assert team.section.finished_through == 0
    assert team.section.parker not in (None, dead)
    team.write(finish_parking(team.section, team.by(), team.section.parker or "", first.orders))
    assert team.section.finished_through == 1


def test_should_accept_no_ack_of_what_is_being_parked() -> None:
    team = Team(size=1, dlq=DEAD)
    (handle,) = team.lease()
    with pytest.raises(InvalidInput, match="is held by lease"):
        park(team.section, team.by(), team.queue, 0)
    team.nack(handle)
    section, orders = park(team.section, team.by(), team.queue, 0)
    team.write(section)
    assert orders
    assert team.lease() == []
    with pytest.raises(InvalidHandle):
        team.ack(handle)


def test_should_block_after_parking_and_never_copy_again() -> None:
    team = Team(size=1, dlq_strategy="block_and_dlq", dlq=DEAD)
    team.fail(2)
    (order,) = team.consume().orders
    team.write(finish_parking(team.section, team.by(), team.section.parker or "", [order]))
    assert team.phases() == ["blocked"]
    team.write(unblock(team.section, team.by(), 0))
    team.fail(1)
    grant = team.consume()
    assert (grant.orders, grant.blocked) == ((), (0,))
    section, orders = park(team.section, team.by(), team.queue, 0)
    team.write(section)
    assert orders == ()
    assert team.phases() == ["finished"]


def test_should_let_whoever_comes_next_take_on_what_was_given_up_meanwhile() -> None:
    team = Team(size=3, dlq=DEAD)
    section, (first,) = park(team.section, team.by(), team.queue, 2)
    team.write(section)
    parker = section.parker
    section, none = park(team.section, team.by(), team.queue, 0)
    team.write(section)
    assert none == ()
    team.write(finish_parking(team.section, team.by(), parker or "", [first]))
    section, (second,) = resume_parking(team.section, team.by())
    assert (second.sequence, second.ordinal) == (0, 2)


def test_should_refuse_to_park_without_a_place_or_what_is_not_there() -> None:
    team = Team()
    with pytest.raises(InvalidConfig, match="no dead-letter queue"):
        park(team.section, team.by(), team.queue, 0)
    team = Team(dlq=DEAD)
    team.ack(*team.lease())
    for sequence in (0, 5):
        with pytest.raises(InvalidInput, match="nothing to do"):
            park(team.section, team.by(), team.queue, sequence)


def test_should_keep_the_dead_letter_queue_while_something_is_on_its_way_there() -> None:
    team = Team(dlq=DEAD)
    section, _ = park(team.section, team.by(), team.queue, 0)
    with pytest.raises(InvalidConfig, match="being parked"):
        rules.configure(section, team.by(), section.config.replace(dlq="other/manifest"))


# Caps


def test_should_grant_no_lease_whose_ack_could_make_a_hole_too_many() -> None:
    team = Team(size=6, max_ack_holes=1)
    # Of 0, 1, 2 any may be acked first: 2 alone is one hole, but 1 and 3 would be two.
    handles = team.lease(6)
    assert sequences(handles) == [0, 1, 2]
    grant = team.consume(6)
    assert isinstance(grant.stopped, AckHoleCapExceeded)
    assert grant.deliveries == ()
    team.ack(handles[2])
    assert sequences(team.lease(6)) == [3]
    team.ack(handles[0])
    assert team.section.holes == 1


def test_should_not_give_up_by_hand_what_would_make_a_hole_too_many_when_it_is_being_parked() -> None:
    """With `block_and_dlq` a batch that is being parked stays unfinished; given up by hand it would not."""
    team = Team(size=6, max_ack_holes=2, max_delivery_attempts=1, dlq_strategy="block_and_dlq", dlq=DEAD)
    handles = team.lease(4)
    team.ack(handles[1])
    team.nack(handles[3])
    (order,) = team.consume().orders
    assert order.sequence == 3
    _, five = team.lease(2)
    team.ack(five)
    assert team.section.finished == ((1, 1), (5, 5))
    with pytest.raises(AckHoleCapExceeded):
        park(team.section, team.by(), team.queue, 3)
    team.write(finish_parking(team.section, team.by(), team.section.parker or "", [order]))
    assert team.section.holes == 2
    team.ack(handles[0], handles[2])
    section, _ = park(team.section, team.by(), team.queue, 3)
    assert section.finished_through == 3


def test_should_always_grant_the_frontier_when_a_lowered_cap_is_passed_already() -> None:
    team = Team(size=8)
    handles = team.lease(8)
    team.ack(*handles[1::2])
    assert team.section.holes == 4
    team.write(rules.configure(team.section, team.by(), team.section.config.replace(max_ack_holes=1)))
    team.nack(*handles[::2])
    for holes in (3, 2, 1, 0):
        (handle, *_) = team.lease(1)
        team.ack(handle)
        assert team.section.holes == holes


def test_should_say_that_the_queue_is_full() -> None:
    team = Team(size=3, max_depth=3)
    with pytest.raises(QueueFull) as caught:
        rules.check_depth(team.section, team.queue.stop, "q/manifest")
    assert (caught.value.depth, caught.value.max_depth) == (3, 3)
    team.ack(team.lease(2)[1])
    rules.check_depth(team.section, team.queue.stop, "q/manifest")


def test_should_purge_all_but_what_is_being_parked() -> None:
    team = Team(dlq=DEAD)
    (held,) = team.lease()
    section, _ = park(team.section, team.by(), team.queue, 2)
    team.write(section)
    section, gone = rules.purge(team.section, team.by(), team.queue)
    team.write(section)
    assert gone == 4
    assert team.phases() == ["finished", "finished", "parking", "finished", "finished"]
    with pytest.raises(InvalidHandle):
        team.ack(held)


# Others


def test_should_go_on_after_another_reader_under_a_new_epoch() -> None:
    team = Team()
    handles = team.lease(3)
    team.ack(handles[2])
    team.write(rules.claimed(team.section, team.by(), epoch=7, first_sequence=2))
    assert (team.section.epoch, team.section.finished_through, team.section.finished) == (7, 2, ())
    team.queue = range(2, 5)
    assert sequences(team.lease(3)) == [3, 4]


def test_should_know_after_a_lost_reply_whether_the_write_landed() -> None:
    team = Team()
    ours = Stamp("us", 1, team.now_ms)
    section, _ = rules.consume(team.section, ours, team.queue, 1)
    assert not team.section.has_receipt("us", 1)
    team.write(section)
    for _ in range(50):
        team.lease()
        team.numbers += 1
    team.ack(Handle(ours.lease_id, 0))
    assert team.section.has_receipt("us", 1)
    assert not team.section.has_receipt("us", 2)


def test_should_keep_receipts_few_and_young() -> None:
    team = Team(size=1)
    (handle,) = team.lease()
    for number in range(RECEIPTS_MAX + 50):
        team.section = rules.extend(team.section, Stamp(f"w{number}", 1, team.now_ms), [handle], 0)
    assert len(team.section.receipts) == RECEIPTS_MAX
    team.section = rules.extend(team.section, team.by(), [handle], 2 * RECEIPT_KEEP_MS)
    team.now_ms += RECEIPT_KEEP_MS
    team.section = rules.extend(team.section, team.by("late"), [handle], 0)
    assert list(team.section.receipts) == ["late"]


def test_should_stay_small_however_long_the_queue() -> None:
    team = Team(size=100_000, max_in_flight=10_000, max_ack_holes=10_000)
    handles = team.lease(5_000)
    assert len(json.dumps(team.section.to_json())) < 700
    team.ack(*handles[100:])
    assert len(json.dumps(team.section.to_json())) < 700
    assert team.section.depth(team.queue.stop) == 100_000 - 4_900


# Strict reading


def damaged(path: str, value: Any) -> Any:
    team = Team(dlq=DEAD)
    team.ack(team.lease(2)[1])
    section, _ = park(team.section, team.by(), team.queue, 3)
    document = json.loads(json.dumps(section.to_json()))
    inner = document
    *parents, name = path.split(".")
    for parent in parents:
        inner = inner[int(parent) if isinstance(inner, list) else parent]
    if isinstance(inner, list):
        inner[int(name)] = value
    elif value is ...:
        del inner[name]
    else:
        inner[name] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("epoch", -1, "leases.epoch is -1"),
        ("time_ms", True, "leases.time_ms is True"),
        ("finished_through", -2, "leases.finished_through is -2"),
        ("finished", [[1, 1], [2, 2]], "leases.finished"),
        ("finished", [[0, 0]], "leases.finished"),
        ("finished.0", [1], "leases.finished[0]"),
        ("batches", {}, "leases.batches is {}"),
        ("batches.0.0", 9, "leases.batches[0] is 9..0"),
        ("batches.0.1", 10**12, "leases.batches[0]"),
        ("batches.0.2.count", "1", "leases.batches[0].count is '1'"),
        ("batches.0.2.lease", 7, "leases.batches[0].lease is 7"),
        ("batches.0.2.owed", [[2, 1]], "leases.batches[0].owed"),
        ("batches.0.2.owed", [], "leases.batches[0].owed"),
        ("batches.0.2.owed", [[0, 10**12]], "leases.batches[0].owed goes up to 1,000,000,000,000"),
        ("batches.0.2.state", "gone", "leases.batches[0].state is 'gone'"),
        ("batches.0.2.colour", "red", "unknown field leases.batches[0].colour"),
        ("batches.0.2.then_blocked", 1, "leases.batches[0].then_blocked is 1"),
        ("batches.1.2.ordinal", 0, "leases.batches, 3: ordinal is 0"),
        ("batches.1.2.ordinal", 2, "leases.batches, 3: ordinal is 2"),
        ("batches.0.0", -1, "leases.batches[0][0] is -1"),
        ("finished", [[3, 3]], "leases.batches has 3"),
        ("config.dlq_strategy", "drop", "leases.config.dlq_strategy"),
        ("config.dlq_strategy", "x" * 10**6, "leases.config.dlq_strategy"),
        ("config.max_depth", ..., "missing field leases.config.max_depth"),
        ("parker", ..., "missing field leases.parker"),
        ("more", 1, "unknown field leases.more"),
        ("receipts.w", [1], "leases.receipts[w]"),
        ("receipts.w", [1, "late"], "leases.receipts[w][1]"),
    ],
)
def test_should_name_the_field_that_is_damaged(path: str, value: Any, named: str) -> None:
    envelope = {"version": 2, "generation": 1, "queue_id": "01M7JW6V2BKF04N3ANEAY9KR1J", "epoch": 1}
    data = json.dumps({**envelope, "leases": damaged(path, value)}).encode()
    with pytest.raises(CorruptLedger) as caught:
        LeaseLedger.from_bytes(data, location="q/manifest.ledger")
    assert named in str(caught.value)
    assert len(str(caught.value)) < 1500, "however large what stands there is"
    assert caught.value.location == "q/manifest.ledger"


def test_should_tell_a_finished_one_from_the_others() -> None:
    team = Team(size=2)
    team.ack(team.lease(2)[1])
    assert phase(team.section, 1, team.now_ms) is Phase.FINISHED
