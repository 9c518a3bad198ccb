"""Producers in processes of their own and a consumer on a real S3 server: over a bad network, and when it dies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from buffer.config import ConsumerConfig
from buffer.store import Store
from tests.consume.consumer_support import ulid_at
from tests.crash.consuming import KeepingConsumer
from tests.crash.processes import Worker, await_true
from tests.crash.s3 import MortalS3, through
from tests.crash.verdict import judge
from tests.fault_proxy import FAULTS, FaultProxy, evenly
from tests.nets import HANGS_S
from tests.servers import S3Server, StoreAddress

STORM_S = 7.0
ORPHANS = 40
HOUR_MS = 3_600_000

StartProducer = Callable[[str, StoreAddress], Worker]


@pytest.fixture
def start_producer(tmp_path: Path) -> Iterator[StartProducer]:
    """`start_producer(name, address)`; its log is `logs/name.log`. All are dead after the test."""
    (tmp_path / "logs").mkdir()
    with ExitStack() as stack:

        def start(name: str, address: StoreAddress) -> Worker:
            settings: dict[str, Any] = {"store": address.url, "store_options": address.options}
            settings |= {"flush_interval_ms": 20, "append_timeout_s": 20}
            options = {"name": name, "log": str(tmp_path / f"logs/{name}.log"), "settings": settings}
            return stack.enter_context(Worker("tests.crash.producing", options, tmp_path / f"{name}.stderr"))

        yield start


def _consumer(address: StoreAddress, **settings: Any) -> KeepingConsumer:
    config = ConsumerConfig(store=address.url, store_options=address.options, **settings)
    return KeepingConsumer(config, batches_max=20)


def _drain_until(consumer: KeepingConsumer, deadline_s: float) -> None:
    while time.monotonic() < deadline_s:
        if consumer.drain():
            time.sleep(0.02)


def _seed_orphans(store: Store, now_ms: int, age_ms: int, tail: int) -> set[str]:
    """Batches as a producer leaves them that died between upload and append."""
    names = {f"ingest/{ulid_at(now_ms - age_ms, tail + number)}.batch" for number in range(ORPHANS)}
    for name in names:
        store.put(name, b"orphan")
    return names


def test_should_consume_every_durable_entry_once_over_a_bad_network(
    s3_server: S3Server, tmp_path: Path, start_producer: StartProducer
) -> None:
    """Every kind of fault, a producer killed, one stopped and woken, the consumer dropped, old orphans collected."""
    seed = random.randrange(1 << 32)
    direct = s3_server.new_address()
    store = direct.open()
    now_ms = time.time_ns() // 1_000_000
    old = _seed_orphans(store, now_ms, HOUR_MS, 0)
    young = _seed_orphans(store, now_ms, 0, ORPHANS)
    with FaultProxy(s3_server.endpoint, evenly(0.4), seed, slow_s=(0.02, 1.2)) as proxy:
        address = through(proxy, direct, timeout="1s")  # some of the slow requests take longer
        victim, sleeper = (start_producer(name, address) for name in ("victim", "sleeper"))
        consumer = _consumer(address, gc_interval_s=0.3, cas_timeout_s=20)
        begun_s = time.monotonic()
        _drain_until(consumer, begun_s + STORM_S * 0.5)
        victim.kill()
        sleeper.freeze()
        heir = start_producer("heir", address)
        consumer.crash()
        _drain_until(consumer, begun_s + STORM_S * 0.7)
        sleeper.thaw()
        _drain_until(consumer, begun_s + STORM_S)
        proxy.calm()
        assert [producer.end() for producer in (sleeper, heir)] == [0, 0], f"seed {seed}"
        await_true(consumer.drain, HANGS_S, f"drained, seed {seed}")
        objects = {item.location for item in store.list("ingest")}
        consumer.close()
    verdict = judge((tmp_path / "logs").glob("*.log"), consumer.found)
    assert verdict.violations == [], f"seed {seed}"
    assert verdict.durable > 100, f"too few to mean anything: {verdict}, {proxy.counts}, seed {seed}"
    assert [fault for fault in FAULTS if not proxy.counts[fault]] == [], f"seed {seed}: {proxy.counts}"
    assert old.isdisjoint(objects), "two looks and an hour: they are to be collected"
    assert young <= objects, "they might be appended yet"


def test_should_go_on_when_the_s3_server_is_killed_and_comes_back(
    tmp_path: Path, start_producer: StartProducer
) -> None:
    folder = tmp_path / "s3"
    folder.mkdir()
    with FaultProxy(None) as proxy, MortalS3(folder, proxy) as s3:
        assert s3.server is not None
        address = through(proxy, s3.server.new_address(), timeout="5s")
        producers = [start_producer(name, address) for name in ("one", "two")]
        consumer = _consumer(address, gc_enabled=False)
        await_true(lambda: consumer.drain() and _read(consumer) > 100, HANGS_S, "the first entries")
        s3.kill()
        s3.start()
        before = _read(consumer)
        await_true(lambda: consumer.drain() and _read(consumer) > before + 100, HANGS_S, "entries again")
        assert [producer.end() for producer in producers] == [0, 0]
        await_true(consumer.drain, HANGS_S, "drained")
        consumer.close()
    assert s3.lives == 2
    assert proxy.unanswered > 0, "nobody noticed that it was gone"
    verdict = judge((tmp_path / "logs").glob("*.log"), consumer.found)
    assert verdict.violations == []
    assert verdict.durable > 200


def _read(consumer: KeepingConsumer) -> int:
    return sum(len(ids) for ids in consumer.found.values())
