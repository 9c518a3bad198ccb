"""A producer with a client id under kill -9, on local files and on S3 over a bad network. All of it: `make crash`."""

from __future__ import annotations

import random
from pathlib import Path

from buffer.config import ConsumerConfig
from tests.crash.client_cycles import ClientCycles
from tests.crash.consuming import KeepingConsumer
from tests.crash.s3 import through
from tests.fault_proxy import FaultProxy, evenly
from tests.servers import S3Server

KILLS = 5


def test_should_land_each_entry_once_however_often_the_producer_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    store = str(tmp_path / "queue")
    consumer = KeepingConsumer(ConsumerConfig(store=store, gc_interval_s=0.05))
    cycles = ClientCycles(tmp_path / "client", seed, {"store": store}, consumer)
    verdict = cycles.run(KILLS)
    assert verdict.violations == [], f"seed {seed}: {verdict}"


def test_should_land_each_entry_once_over_a_bad_network(s3_server: S3Server, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    direct = s3_server.new_address()
    with FaultProxy(s3_server.endpoint, evenly(0.2), seed, slow_s=(0.02, 1.2)) as proxy:
        address = through(proxy, direct, timeout="1s")
        settings = {"store": address.url, "store_options": address.options, "append_timeout_s": 20}
        config = ConsumerConfig(store=address.url, store_options=address.options, gc_interval_s=0.3, cas_timeout_s=20)
        cycles = ClientCycles(
            tmp_path / "client", seed, settings, KeepingConsumer(config, batches_max=50), calm=proxy.calm
        )
        verdict = cycles.run(KILLS)
    assert verdict.violations == [], f"seed {seed}: {verdict}"
    assert sum(proxy.counts.values()) > 50, f"seed {seed}: {proxy.counts}"
