"""What workers do is counted and timed, verb by verb; waiting is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from buffer.consume.consumer import Consumer
from buffer.errors import InvalidHandle, StoreUnusable
from tests.leases.lease_support import DEAD, TIMEOUT_MS, Dying, Work
from tests.metrics_reader import points, value

COUNTERS = ("produced", "consumed", "acked", "nacked", "expired", "parked", "handle_errors")


def counted(act: Callable[[], Any]) -> dict[str, float]:
    """The counters that went up, and by how much."""
    before = {name: value(f"buffer.leases_{name}") for name in COUNTERS}
    act()
    after = {name: value(f"buffer.leases_{name}") for name in COUNTERS}
    return {name: after[name] - before[name] for name in COUNTERS if after[name] != before[name]}


def timed(verb: str) -> tuple[int, float]:
    """How many calls were timed, and the seconds of all of them."""
    found = points("buffer.leases_duration_seconds", {"verb": verb})
    return (found[0].count, found[0].sum) if found else (0, 0.0)


def took(verb: str, act: Callable[[], Any]) -> tuple[int, float]:
    calls, seconds = timed(verb)
    act()
    after = timed(verb)
    return after[0] - calls, after[1] - seconds


def gauges() -> dict[str, float]:
    return {name: value(f"buffer.leases_{name}") for name in ("depth", "in_flight", "holes", "blocked")}


def parking(batches: int, **also: Any) -> Work:
    return Work(batches, dlq_strategy="skip", dlq=DEAD, max_delivery_attempts=1, **also)


def test_should_count_what_is_delivered_and_answered() -> None:
    work = Work(3)
    queue = work.open()
    held: list[Any] = []
    assert counted(lambda: held.extend(queue.consume(3))) == {"consumed": 3}
    assert gauges() == {"depth": 3, "in_flight": 3, "holes": 0, "blocked": 0}
    assert counted(lambda: queue.ack(held[1])) == {"acked": 1}
    assert counted(lambda: queue.nack([held[0], held[2]])) == {"nacked": 2}
    assert counted(lambda: held.extend(queue.consume(1))) == {"consumed": 1}
    assert gauges() == {"depth": 2, "in_flight": 1, "holes": 1, "blocked": 0}
    assert counted(lambda: queue.consume(1, acks=[held[-1]])) == {"acked": 1, "consumed": 1}
    assert counted(lambda: queue.produce([b"more"])) == {"produced": 1}


def test_should_count_leases_that_ran_out_and_handles_that_did_not_hold() -> None:
    work = Work(2, max_delivery_attempts=5)
    queue = work.open()
    lost = list(queue.consume(2))
    work.expire()

    def ack_too_late() -> None:
        with pytest.raises(InvalidHandle):
            queue.ack(lost)

    assert counted(ack_too_late) == {"handle_errors": 2}
    assert counted(lambda: queue.consume(2)) == {"consumed": 2, "expired": 2}


def test_should_count_what_is_blocked() -> None:
    work = Work(1, max_delivery_attempts=1)
    queue = work.open()
    queue.nack(list(queue.consume()))
    queue.consume()
    assert gauges() == {"depth": 1, "in_flight": 0, "holes": 0, "blocked": 1}


def test_should_count_what_is_parked_by_a_worker_by_hand_and_by_a_redrive() -> None:
    work = parking(2)
    queue = work.open()
    queue.nack(list(queue.consume()))
    assert counted(queue.consume) == {"consumed": 1, "parked": 1}
    work.expire()
    assert counted(lambda: queue.park(1)) == {"parked": 1}
    assert counted(queue.redrive) == {"parked": 2}


def test_should_count_what_a_consumer_parks_that_takes_over() -> None:
    work = parking(1)
    store = Dying(work.store)
    queue = work.open(store=store)  # type: ignore[arg-type]
    queue.nack(list(queue.consume()))
    store.die_at(0, lands=True)
    with contextlib.suppress(StoreUnusable):
        queue.consume()
    assert counted(lambda: Consumer.new(work.config(), clock=work.clock)) == {"parked": 1}
    assert counted(lambda: Consumer.new(work.config(), clock=work.clock)) == {}


def test_should_time_every_verb() -> None:
    work = parking(3)
    queue = work.open()
    held = list(queue.consume(2))
    calls: dict[str, Callable[[], Any]] = {
        "extend": lambda: queue.extend(held),
        "ack": lambda: queue.ack(held[0]),
        "snooze": lambda: queue.snooze(held[1]),
        "consume": lambda: held.extend(queue.consume(1)),
        "nack": lambda: queue.nack(held[-1]),
        "park": lambda: queue.park(1),
        "redrive": queue.redrive,
        "configure": lambda: queue.configure(work.leases),
        "stats": queue.stats,
        "peek": queue.peek,
        "purge": queue.purge,
    }
    for verb, call in calls.items():
        assert took(verb, call)[0] == 1, verb


def test_should_not_time_the_waiting() -> None:
    """The clock stands still unless somebody sleeps."""
    work = Work()
    queue = work.open()
    before_s = work.clock.monotonic_s()
    calls, seconds = took("consume", lambda: queue.consume(1, wait_ms=TIMEOUT_MS))
    assert work.clock.monotonic_s() - before_s == pytest.approx(TIMEOUT_MS / 1000, abs=0.01)
    assert calls > 1
    assert seconds == pytest.approx(0.0, abs=1e-6)


def test_should_not_time_the_pauses_of_a_redrive() -> None:
    work = parking(3)
    queue = work.open()
    for sequence in range(3):
        queue.park(sequence)
    before_s = work.clock.monotonic_s()
    calls, seconds = took("redrive", lambda: queue.redrive(max_per_second=0.5))
    assert work.clock.monotonic_s() - before_s >= 4.0
    assert (calls, seconds) == (1, pytest.approx(0.0, abs=1e-6))
