"""In whatever state a loader is, health, metrics, JSON and `buffer-delta status` say the same, and it is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.inspect.status import queue_status, read_ledger
from buffer.ledger.plan import Blocked as BlockedState
from buffer.ledger.plan import Ledger, Plan
from buffer.model import Metadata
from buffer.names import ledger_path
from buffer.store import Store
from buffer.testing import ManualClock
from buffer_delta.errors import Blocked
from buffer_delta.serve.server import StatusServer
from buffer_delta.serve.status import STATES, Limits
from buffer_delta.serve.watch import Watch, one_look
from tests.consume.consumer_support import Tapped, fill
from tests.serve.serve_support import TABLE, FakeLoader, fenced, filled, get_json, scrape, served

MANIFEST = "ingest/manifest"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def views(server: StatusServer, store: Store) -> dict[str, Any]:
    """What each view says of the state; they must agree. Returns the JSON."""
    code, health = get_json(server, "/healthz")
    _, status = get_json(server, "/api/status")
    metrics = scrape(server)
    queue = f"{store.url} {MANIFEST}"
    states = {s: metrics["buffer_delta_state" + json.dumps({"queue": queue, "state": s})] for s in STATES}
    assert [s for s, is_in in states.items() if is_in] == [health["state"]] == [status["state"]]
    assert (code == 200) == health["healthy"] == status["healthy"]
    assert metrics["buffer_delta_healthy" + json.dumps({"queue": queue})] == float(code == 200)
    for name in ("lag_seconds", "lag_batches", "backlog_bytes", "epoch", "next_sequence"):
        shown = metrics.get(f"buffer_delta_{name}" + json.dumps({"queue": queue}))
        assert shown == status[name], name
    assert metrics["buffer_delta_plan_attempts" + json.dumps({"queue": queue})] == status["attempts"]
    assert get_json(server, "/readyz")[0] == (200 if status["ready"] else 503)
    return dict(status)


def single_look(store: Store, clock: ManualClock) -> str:
    """The state that `buffer-delta status` would show."""
    queue = queue_status(store, clock=clock)
    return one_look(store, ConsumerConfig(store=store), queue, clock=clock).state


def test_should_be_idle_with_an_empty_queue(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock)
    consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
    loader = FakeLoader(clock)
    with served(memory, clock, loader) as server:
        assert views(server, memory)["state"] == "starting"
        loader.open(consumer.epoch)
        consumer.next_descriptors(3)
        consumer.ack_through(2)
        loader.commit(0, 2, rows=30)
        loader.known = consumer.known()
        clock.advance(10_000)  # nothing comes for hours: that is no fault
        server.watch.look()
        status = views(server, memory)
        assert (status["state"], status["lag_seconds"], status["length"]) == ("idle", 0, 0)
        assert single_look(memory, clock) == "idle"
        assert status["tables"] == [
            {"table": TABLE, "exists": True, "committed": 2, "lag_batches": 0, "problem": None, "version": 3}
        ]
        metrics = scrape(server)
        queue = f"{memory.url} {MANIFEST}"
        assert metrics["buffer_delta_since_commit_seconds" + json.dumps({"queue": queue})] == 10_000
        assert metrics["buffer_delta_table_position" + json.dumps({"queue": queue, "table": TABLE})] == 2


def test_should_be_idle_beside_an_empty_queue(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock, 1)
    consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
    consumer.next_descriptors(1)
    consumer.ack_through(0)
    with served(memory, clock) as server:
        assert views(server, memory)["state"] == "idle"
        assert server.watch.history()[0].next_sequence == 1


def test_should_be_stuck_when_entries_wait_and_nothing_is_committed(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock)
    loader = FakeLoader(clock)
    with served(memory, clock, loader) as server:
        loader.open()
        loader.recorder.planned(0, 2, 1)
        assert views(server, memory)["state"] == "loading"
        loader.recorder.failed("the store does not answer")
        clock.advance(60)
        server.watch.look()
        status = views(server, memory)
        assert (status["state"], status["healthy"]) == ("retrying", True)
        loader.recorder.planned(0, 2, 2)
        loader.recorder.failed("the store does not answer")
        clock.advance(560)
        server.watch.look()
        status = views(server, memory)
        assert status["state"] == "stuck"
        assert "3 batches waiting, no commit for 10 min 20 s: the store does not answer" in status["reason"]
        assert get_json(server, "/livez")[0] == 503
        assert single_look(memory, clock) == "waiting", "one look cannot tell: it says so only of a repeated range"
        ledger = Ledger(queue_id="01TEST", app_id="a", tables=(TABLE,), born=True, plan=Plan(-1, 0, 2, attempts=2))
        memory.put(ledger_path(MANIFEST), ledger.to_bytes())
        assert single_look(memory, clock) == "stuck"
        loader.commit(0, 2)
        clock.advance(1)
        assert views(server, memory)["state"] == "waiting", "it got on: the rest is a backlog, not a fault"
        assert get_json(server, "/livez")[0] == 200


@pytest.mark.parametrize("seen_empty", [True, False])
def test_should_not_be_stuck_by_old_entries_that_have_just_come(
    memory: Store, clock: ManualClock, seen_empty: bool
) -> None:
    """A producer that could not reach the store for long appends what it took meanwhile, and the loader had none."""
    filled(memory, clock, 1)
    consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
    loader = FakeLoader(clock)
    loader.open(consumer.epoch)
    watch = Watch(memory, ConsumerConfig(store=memory), loader=loader, limits=Limits(stuck_s=600), clock=clock)
    watch.look()
    consumer.next_descriptors(1)
    consumer.ack_through(0)
    loader.commit(0, 0)
    watch.look()
    taken_ms = clock.now_ms()
    clock.advance(1200)
    if seen_empty:
        watch.look()
    fill(memory, 1, metadata=[Metadata(0, taken_ms, b"")])
    clock.advance(1)
    watch.look()
    status = watch.status()
    assert (status.state, status.lag_seconds, status.needs_restart) == ("waiting", 1201, False)
    clock.advance(601)
    watch.look()
    status = watch.status()
    assert (status.state, status.needs_restart) == ("stuck", True), "by now it should have loaded it"
    assert "no commit for 30 min 2 s" in status.reason


@pytest.mark.parametrize("with_loader", [True, False])
def test_should_be_stuck_whatever_time_a_producer_gave(memory: Store, clock: ManualClock, with_loader: bool) -> None:
    """In microseconds it lies far ahead, so nothing would ever be old."""
    fill(memory, 2, metadata=[Metadata(0, clock.now_ms() * 1000, b"")])
    loader = FakeLoader(clock)
    loader.open()
    with served(memory, clock, loader if with_loader else None) as server:
        assert views(server, memory)["state"] == "waiting"
        clock.advance(601)
        server.watch.look()
        status = views(server, memory)
        assert (status["state"], status["lag_seconds"]) == ("stuck", 0)


def test_should_be_blocked_as_the_ledger_says_with_a_loader_and_without(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock)
    reason = "2 batches cannot be read: 'secret value' is no number"
    ledger = Ledger(
        queue_id="01TEST",
        epoch=1,
        app_id="buffer/01TEST",
        tables=(TABLE,),
        born=True,
        next_sequence=3,
        plan=Plan(-1, 0, 2, attempts=6, quarantined={1: "value {'name': 'secret'}"}),
        blocked=BlockedState(0, 2, reason, {1: 'no frame: "secret"'}),
    )
    memory.put(ledger_path(MANIFEST), ledger.to_bytes())
    loader = FakeLoader(clock)
    loader.recorder.ended(Blocked(reason))
    for beside in (None, loader):
        with served(memory, clock, beside) as server:
            status = views(server, memory)
            assert status["state"] == single_look(memory, clock) == "blocked"
            assert (status["attempts"], status["ready"]) == (6, False)
            assert status["reason"] == "batches 0..2: 2 batches cannot be read: '…' is no number"
            assert "secret" not in json.dumps(status)
            assert get_json(server, "/livez")[0] == 200, "a restart would block again"
    with served(memory, clock, loader, show_records=True) as server:
        assert "secret value" in views(server, memory)["reason"]
    assert read_ledger(memory, MANIFEST) == ledger, "looking changes nothing"


def test_should_be_fenced_as_soon_as_another_epoch_is_seen(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock)
    config = ConsumerConfig(store=memory, gc_enabled=False)
    loader = FakeLoader(clock)
    with served(memory, clock, loader) as server:
        consumer = Consumer.new(config, clock=clock)
        loader.open(consumer.epoch)
        loader.known = consumer.known()
        server.watch.look()
        assert views(server, memory)["state"] == "waiting"
        Consumer.new(config, clock=clock)
        clock.advance(1)
        server.watch.look()
        assert views(server, memory)["state"] == "fenced", "before the loader itself has noticed"
        loader.recorder.ended(fenced())
        clock.advance(1)
        assert views(server, memory)["reason"] == "another consumer claimed the queue"
        assert get_json(server, "/livez")[0] == 200, "a restart would start a duel"


def test_should_be_behind_only_where_there_is_a_limit(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock)
    clock.advance(301)
    with served(memory, clock) as server:
        assert views(server, memory)["state"] == "waiting"
    with served(memory, clock, limits=Limits(max_lag_s=300)) as server:
        status = views(server, memory)
        assert (status["state"], status["ready"], status["healthy"]) == ("behind", True, False)


def test_should_see_a_queue_that_nobody_takes_from_without_a_loader(memory: Store, clock: ManualClock) -> None:
    filled(memory, clock)
    with served(memory, clock) as server:
        clock.advance(601)
        server.watch.look()
        assert views(server, memory)["state"] == "stuck"
        consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
        consumer.next_descriptors(1)
        consumer.ack_through(0)
        clock.advance(1)
        server.watch.look()
        assert views(server, memory)["state"] == "waiting"


def test_should_be_unreachable_without_a_queue_and_recover(memory: Store, clock: ManualClock) -> None:
    with served(memory, clock) as server:
        code, health = get_json(server, "/healthz")
        assert (code, health["state"]) == (503, "unreachable")
        assert "there is no queue yet" in health["reason"]
        assert views(server, memory)["state"] == "unreachable", "the metrics say so too: an alert must not miss it"
        filled(memory, clock)
        clock.advance(1)
        server.watch.look()
        assert views(server, memory)["state"] == "waiting"
        memory.put(MANIFEST, b"garbage")
        clock.advance(30)
        server.watch.look()
        assert views(server, memory)["state"] == "waiting", "one failed look is no alarm"
        clock.advance(31)
        server.watch.look()
        status = views(server, memory)
        assert status["state"] == "unreachable"
        assert "manifest" in status["queue_problem"]


def test_should_show_leases_and_clients_where_the_queue_has_them(memory: Store, clock: ManualClock) -> None:
    from buffer.config import LeaseConfig, ProducerConfig
    from buffer.leases import LeaseQueue
    from buffer.produce.producer import Producer

    with Producer(ProducerConfig(store=memory), client_id="sensor-<7>") as producer:
        producer.produce([b"a"])
        producer.flush()
    queue = LeaseQueue.open(ConsumerConfig(store=memory, gc_enabled=False), LeaseConfig(), clock=clock)
    queue.consume(1)
    with served(memory, clock) as server:
        _, status = get_json(server, "/api/status")
        assert (status["leases"]["depth"], status["leases"]["in_flight"]) == (1, 1)
        assert status["clients"] == {"count": 1, "lost": None, "newest": [["sensor-<7>", 0, 0]]}
    queue.close()


def test_should_know_the_bytes_that_wait_at_every_look(memory: Store, clock: ManualClock) -> None:
    """A backlog that came a second after a look is one, and only what is new is listed."""

    def stored() -> int:
        return sum(info.size for info in memory.list("ingest") if info.location.endswith(".batch"))

    tapped = Tapped(memory)
    filled(memory, clock, 2)
    with served(tapped, clock) as server:
        assert views(server, memory)["backlog_bytes"] == stored() > 0
        consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
        consumer.next_descriptors(2)
        consumer.ack_through(1)
        clock.advance(1)
        server.watch.look()
        assert views(server, memory)["backlog_bytes"] == 0
        loaded = stored()
        filled(memory, clock, 3)
        clock.advance(1)
        server.watch.look()
        assert views(server, memory)["backlog_bytes"] == stored() - loaded > 0
        tapped.calls.clear()
        server.watch.look()
        assert [call for call in tapped.calls if call[0] in ("list", "head")] == [], "nothing is new"


def test_should_not_count_the_bytes_of_what_the_loader_has_just_loaded(memory: Store, clock: ManualClock) -> None:
    """The loader knows that they left before the next look does."""
    filled(memory, clock, 3)
    sizes = sorted((info.location, info.size) for info in memory.list("ingest") if info.location.endswith(".batch"))
    loader = FakeLoader(clock)
    with served(memory, clock, loader) as server:
        assert views(server, memory)["backlog_bytes"] == sum(size for _, size in sizes)
        consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
        loader.open(consumer.epoch)
        consumer.next_descriptors(2)
        consumer.ack_through(1)
        loader.known = consumer.known()
        clock.advance(1)
        status = views(server, memory)
        assert (status["length"], status["backlog_bytes"]) == (1, sizes[2][1])
        consumer.next_descriptors(1)
        consumer.ack_through(2)
        loader.known = consumer.known()
        clock.advance(1)  # answers are kept for a moment
        assert views(server, memory)["backlog_bytes"] == 0


def test_should_not_call_a_backlog_empty_of_which_nothing_was_counted(memory: Store, clock: ManualClock) -> None:
    """The loader has taken all that the last look saw, and knows of more."""
    filled(memory, clock, 2)
    loader = FakeLoader(clock)
    with served(memory, clock, loader) as server:
        consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
        loader.open(consumer.epoch)
        consumer.next_descriptors(2)
        filled(memory, clock, 1)
        consumer.ack_through(1)
        loader.known = consumer.known()
        clock.advance(1)
        status = views(server, memory)
        assert (status["lag_batches"], status["backlog_bytes"]) == (1, None)
        server.watch.look()
        clock.advance(1)
        assert views(server, memory)["backlog_bytes"] > 0
