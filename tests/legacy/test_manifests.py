"""The decisions over the two manifests, as values."""

from __future__ import annotations

import pytest

from buffer.legacy import manifests
from buffer.legacy.format import ConsumerManifest, ProducerManifest
from buffer.legacy.manifests import Ack, Held

NOW, TIMEOUT = 1_000_000, 30_000


def choose(
    claimed: dict[str, int], done: tuple[str, ...], pending: tuple[str, ...], held: tuple[str, ...] = ()
) -> str | None:
    return manifests.choose(ConsumerManifest(claimed, done), ProducerManifest(pending), held, NOW, TIMEOUT)


def test_should_choose_the_oldest_stale_claim_before_pending_ones() -> None:
    stale = {"b": NOW - TIMEOUT - 1, "c": NOW - TIMEOUT - 2}
    assert choose(stale, (), ("a", "b", "c")) == "c"
    assert choose({"b": NOW - TIMEOUT - 1}, (), ("a", "b", "c")) == "b"
    assert choose({"b": NOW - TIMEOUT}, (), ("a", "b", "c")) == "a", "as old as the timeout is not older"


def test_should_choose_the_first_pending_of_equally_stale_claims() -> None:
    assert choose({"c": 5, "b": 5}, (), ("a", "b", "c")) == "b"


def test_should_not_choose_what_is_done_held_or_not_pending() -> None:
    assert choose({}, ("a",), ("a", "a", "b")) == "b"
    assert choose({"a": 5}, ("a",), ("a",)) is None, "not even a stale claim of it"
    assert choose({"x": 5}, (), ("a",)) == "a"
    assert choose({"a": 5}, (), ("a", "b"), held=("a",)) == "b"
    assert choose({"a": manifests.PARKED_MS}, (), ("a",)) is None


def test_should_never_write_a_time_that_stood_there_before() -> None:
    consumer, token = manifests.claim(ConsumerManifest({"a": NOW}), "a", NOW)
    assert token == NOW + 1 == consumer.claimed["a"]


def test_should_refresh_only_what_is_ours_and_never_as_far_as_a_take_over() -> None:
    consumer = ConsumerManifest({"a": NOW - 10, "b": NOW - 10, "c": NOW + 5, "d": NOW - TIMEOUT - 7})
    held = {"a": Held(NOW - 10), "b": Held(NOW - 20), "c": Held(NOW + 5), "d": Held(NOW - TIMEOUT - 7), "e": Held(1)}
    refreshed, written = manifests.refresh(consumer, held, NOW, TIMEOUT)
    assert written == {"a": NOW, "c": NOW + 6, "d": NOW - 7}
    assert refreshed.claimed == {"a": NOW, "b": NOW - 10, "c": NOW + 6, "d": NOW - 7}


@pytest.mark.parametrize(
    ("claimed", "acked_over", "now", "verdict"),
    [
        ({"a": 100}, None, 200, Ack.OURS),
        ({"a": 100}, 100, 200, Ack.OURS),
        ({"a": 101}, None, 200, Ack.LOST),
        ({}, None, 200, Ack.LOST),
        ({}, 100, 100 + TIMEOUT * 2 // 3, Ack.COUNTED),
        ({}, 100, 100 + TIMEOUT * 2 // 3 + 1, Ack.UNKNOWN),
        ({"a": 100 + TIMEOUT + 1}, 100, 200, Ack.LOST),  # a take-over: ours did not land
        ({"a": 99}, 100, 200, Ack.COUNTED),  # a claim that landed late, on what was done and cleaned up
    ],
)
def test_should_judge_an_ack(claimed: dict[str, int], acked_over: int | None, now: int, verdict: Ack) -> None:
    held = Held(100, acked_over_ms=acked_over)
    assert manifests.judge_ack(ConsumerManifest(claimed), "a", held, now, TIMEOUT) is verdict


def test_should_clean_up_all_that_is_done_but_the_last_pending_one() -> None:
    consumer = ConsumerManifest({"x": 1, "c": 2, "a": 3, "d": 4}, ("a", "b", "b", "old", "d"))
    producer = ProducerManifest(("a", "b", "c", "d"))
    gone = manifests.finished(consumer, producer)
    assert gone == ["a", "b", "old"]
    assert manifests.remove(producer, gone).pending == ("c", "d")
    left = manifests.forget(consumer, manifests.remove(producer, gone), gone)
    assert left == ConsumerManifest({"c": 2}, ("d",)), "claims of what is done or not pending go too"
