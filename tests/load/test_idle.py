"""Nothing to do: said before Spark starts, and only if nothing at all is pending."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, LeaseConfig
from buffer.consume.consumer import Consumer
from buffer.errors import StorageError
from buffer.leases import LeaseQueue
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.names import ledger_path
from buffer.store.base import Store
from buffer.testing.faulty import Fault, FaultyStore
from buffer_delta.config import LoaderConfig
from buffer_delta.load.idle import is_idle
from buffer_delta.load.plans import Plans
from tests.consume.consumer_support import MANIFEST, fill


def config(store: Store, **settings: Any) -> LoaderConfig:
    return LoaderConfig(**{"store": store, "manifest_path": MANIFEST, "table": "t", **settings})


def loaded(store: Store, *, planned: int = 3, acked: int | None = 2) -> Plans:
    """A queue of three batches that a loader has planned and acked, as far as it is told."""
    fill(store, 3)
    plans = Plans(store, MANIFEST, SystemClock())
    plans.bind(Binding("app", ("t",)))
    consumer = Consumer.new(ConsumerConfig(store=store, manifest_path=MANIFEST, gc_enabled=False))
    plans.enter(consumer.epoch, Binding("app", ("t",)))
    if planned:
        plan = Plan(after=-1, first=0, last=planned - 1, digest="d", table_ids={"t": None})
        plans.plan(consumer.epoch, None, plan, next_sequence=3, last_location="x")
    consumer.next_descriptors(3)
    if acked is not None:
        consumer.ack_through(acked)
    return plans


def test_should_be_idle_when_all_that_was_planned_is_acked(store: Store) -> None:
    loaded(store)
    assert is_idle(store, config(store))
    assert is_idle(store, config(store, app_id="app"))


@pytest.mark.parametrize(
    "settings",
    [{"table": "u"}, {"dead_letters": "d"}, {"app_id": "b"}, {"app_id": "app", "adopt": True}, {"on_gap": "skip"}],
)
def test_should_start_where_the_configuration_has_something_to_say(memory: Store, settings: dict[str, Any]) -> None:
    loaded(memory)
    assert not is_idle(memory, config(memory, **settings))


@pytest.mark.parametrize(("planned", "acked"), [(3, None), (3, 1), (0, None), (2, 2)])
def test_should_start_where_a_range_waits_or_was_acked_by_another(
    memory: Store, planned: int, acked: int | None
) -> None:
    """A plan that is pending, a commit that may not be acked, batches that nobody planned and that are gone."""
    loaded(memory, planned=planned, acked=acked)
    assert not is_idle(memory, config(memory))


def test_should_start_when_batches_came(memory: Store) -> None:
    loaded(memory)
    fill(memory, 1)
    assert not is_idle(memory, config(memory))


def test_should_start_when_somebody_else_has_claimed_the_queue_since(memory: Store) -> None:
    """He may have dequeued a range that was planned and never committed."""
    loaded(memory)
    Consumer.new(ConsumerConfig(store=memory, manifest_path=MANIFEST, gc_enabled=False)).close()
    assert not is_idle(memory, config(memory))


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: dataclasses.replace(ledger, blocked=Blocked(0, 2, "why")).to_bytes(),
        lambda ledger: dataclasses.replace(ledger, born=False).to_bytes(),
        lambda ledger: b"no ledger at all",
    ],
)
def test_should_start_where_the_ledger_is_not_as_usual(memory: Store, change: Callable[[Ledger], bytes]) -> None:
    plans = loaded(memory)
    ledger = plans.read()
    assert ledger is not None
    memory.put(ledger_path(MANIFEST), change(ledger))
    assert not is_idle(memory, config(memory))


def test_should_start_on_a_queue_that_nobody_has_loaded(memory: Store) -> None:
    assert not is_idle(memory, config(memory))
    fill(memory, 1)
    assert not is_idle(memory, config(memory))


def test_should_not_take_a_store_that_fails_for_an_idle_queue(memory: Store) -> None:
    loaded(memory)
    with pytest.raises(StorageError):
        is_idle(FaultyStore(memory, [Fault.before("get")]), config(memory))


# After workers with leases


def taken_over(store: Store, *, loads: bool = True) -> None:
    """Of six batches workers have finished 0 and 3 to 5, and a loader loads 1 and 2, or nothing yet."""
    fill(store, 6)
    consumes = ConsumerConfig(store=store, manifest_path=MANIFEST, gc_enabled=False)
    with LeaseQueue.open(consumes, LeaseConfig()) as queue:
        held = queue.consume(6).batches
        queue.ack([held[0], *held[3:]])
        queue.nack(held[1:3])
    plans = Plans(store, MANIFEST, SystemClock())
    plans.bind(Binding("app", ("t",)))
    consumer = Consumer.new(consumes)
    plans.enter(consumer.epoch, Binding("app", ("t",)), taken_over=True)
    if loads:
        _, two = consumer.next_descriptors(9)
        plan = Plan(after=-1, first=1, last=2, digest="d", table_ids={"t": None})
        plans.plan(consumer.epoch, None, plan, next_sequence=6, last_location=two.location)
        consumer.ack_through(two.sequence, location=two.location)


def test_should_be_idle_when_workers_have_finished_what_lies_behind_the_last_plan(memory: Store) -> None:
    taken_over(memory)
    assert is_idle(memory, config(memory))
    fill(memory, 1)
    assert not is_idle(memory, config(memory))


def test_should_start_while_something_waits_that_workers_gave_back(memory: Store) -> None:
    taken_over(memory, loads=False)
    assert not is_idle(memory, config(memory))


def test_should_be_idle_on_a_queue_of_which_workers_have_finished_everything(memory: Store) -> None:
    fill(memory, 3)
    consumes = ConsumerConfig(store=memory, manifest_path=MANIFEST, gc_enabled=False)
    queue = LeaseQueue.open(consumes, LeaseConfig())
    queue.ack(queue.consume(3))
    plans = Plans(memory, MANIFEST, SystemClock())
    plans.bind(Binding("app", ("t",)))
    assert not is_idle(memory, config(memory))
    plans.enter(Consumer.new(consumes).epoch, Binding("app", ("t",)), taken_over=True)
    assert is_idle(memory, config(memory))


def test_should_start_where_the_workers_part_is_damaged(memory: Store) -> None:
    taken_over(memory)
    ledger = memory.get(ledger_path(MANIFEST)).data
    memory.put(ledger_path(MANIFEST), ledger.replace(b'"finished_through"', b'"finished_thru"'))
    assert not is_idle(memory, config(memory))
