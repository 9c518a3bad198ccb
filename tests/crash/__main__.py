"""Crash cycles with real processes: `python -m tests.crash --loader-cycles 200 --producer-cycles 1000`.

Ends with 1 if anything was lost, doubled or out of order; then its folder stays, for somebody to look at.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from buffer.config import ConsumerConfig
from buffer_delta.config import WRITERS
from buffer_delta.spark.session import spark_session
from tests.crash.client_cycles import ClientCycles
from tests.crash.consuming import KeepingConsumer
from tests.crash.creation_cycles import CreationCycles
from tests.crash.lease_cycles import LeaseCycles
from tests.crash.lease_cycles import Plan as LeasePlan
from tests.crash.loader_cycles import LoaderCycles
from tests.crash.loading import TableReader
from tests.crash.migrate_cycles import MigrateCycles
from tests.crash.producer_cycles import ProducerCycles
from tests.crash.s3 import through
from tests.crash.settings_cycles import SettingsCycles
from tests.crash.verdict import Verdict
from tests.fault_proxy import FaultProxy, evenly
from tests.servers import StoreAddress, run_s3_server

CYCLES = {
    "producer": 1000,
    "client": 200,
    "lease": 2000,
    "creation": 200,
    "loader": 200,
    "settings": 100,
    "migrate": 50,
}
"""How often each kind dies in a whole run; of leases, how many batches are worked off by workers that die."""


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.partition("\n")[0])
    for what, cycles in CYCLES.items():
        parser.add_argument(
            f"--{what}-cycles", type=int, metavar="N", help=f"without any: {cycles}, and all the others"
        )
    parser.add_argument("--seed", type=int, help="of the moments and ways to die; default: a new one")
    parser.add_argument("--writer", choices=WRITERS, default="auto", help="who writes the files of all loaders")
    options = parser.parse_args(arguments)
    chosen = {what: getattr(options, f"{what}_cycles") for what in CYCLES}
    cycles = CYCLES if all(n is None for n in chosen.values()) else {what: n or 0 for what, n in chosen.items()}
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="buffer-crash-"))
    tell(f"seed {seed}, in {folder}")
    verdicts = []
    if cycles["producer"]:
        producers = ProducerCycles(folder / "producers", seed, tell)
        verdicts.append(_report("producers", cycles["producer"], producers.run))
        tell(f"  {producers.killed} killed, {producers.froze} stopped and woken")
    if cycles["client"]:
        for where, run in (("local files", _local_client), ("S3 over a bad network", _s3_client)):
            verdicts.append(_report(f"a client on {where}", cycles["client"], partial(run, folder, seed)))
        for where, run in (("local files", _loaded_client), ("S3 over a bad network", _s3_loaded_client)):
            what = f"a client on {where} into a Delta table"
            verdicts.append(_report(what, cycles["client"], partial(run, folder, seed)))
    if cycles["lease"]:
        for where, run in (("local files", _local_leases), ("S3 over a bad network", _s3_leases)):
            verdicts.append(_report(f"workers on {where}", cycles["lease"], partial(run, folder, seed)))
        verdicts.append(_report("workers in order", max(1, cycles["lease"] // 10), partial(_in_order, folder, seed)))
    if cycles["creation"]:
        creation = CreationCycles(folder / "creation", seed, tell, writer=options.writer)
        verdicts.append(_report("loaders creating tables", cycles["creation"], creation.run))
    if cycles["loader"]:
        loaders = LoaderCycles(folder / "loaders", seed, tell, writer=options.writer)
        verdicts.append(_report("loaders", cycles["loader"], loaders.run))
    if cycles["settings"]:
        settings = SettingsCycles(folder / "settings", seed, tell, writer=options.writer)
        verdicts.append(_report("loaders whose settings change", cycles["settings"], settings.run))
    if cycles["migrate"]:
        migrations = MigrateCycles(folder / "migrate", seed, tell)
        verdicts.append(_report("migrations of an older queue", cycles["migrate"], migrations.run))
    if any(verdict.violations for verdict in verdicts):
        tell(f"FAILED with seed {seed}; look at {folder}")
        return 1
    shutil.rmtree(folder)
    tell("nothing lost, nothing twice")
    return 0


def _local_client(folder: Path, seed: int, cycles: int) -> Verdict:
    store = str(folder / "client" / "queue")
    consumer = KeepingConsumer(ConsumerConfig(store=store, gc_interval_s=0.05))
    return ClientCycles(folder / "client", seed, {"store": store}, consumer, tell).run(cycles)


def _loaded_client(folder: Path, seed: int, cycles: int) -> Verdict:
    store = str(folder / "loaded client" / "queue")
    reader = TableReader(spark_session("crash cycles of a client"), store, folder / "loaded client" / "table")
    return ClientCycles(folder / "loaded client", seed, {"store": store}, reader, tell).run(cycles)


def _s3_client(folder: Path, seed: int, cycles: int) -> Verdict:
    with _bad_network(folder / "s3", seed, 0.2) as (proxy, direct):
        address = through(proxy, direct, timeout="1s")
        queue = {"store": address.url, "store_options": address.options}
        consumer = KeepingConsumer(ConsumerConfig(**queue, gc_interval_s=0.3, cas_timeout_s=20), batches_max=50)
        settings = {**queue, "append_timeout_s": 20}
        return ClientCycles(folder / "s3 client", seed, settings, consumer, tell, proxy.calm).run(cycles)


def _s3_loaded_client(folder: Path, seed: int, cycles: int) -> Verdict:
    spark, home = spark_session("crash cycles of a client on S3"), folder / "loaded s3 client"
    with _bad_network(folder / "loaded s3", seed, 0.2) as (proxy, direct):
        address = through(proxy, direct, timeout="1s")
        queue = {"store": address.url, "store_options": address.options}
        reader = TableReader(spark, table=home / "table", **queue, gc_interval_s=0.3, cas_timeout_s=20)
        verdict = ClientCycles(home, seed, {**queue, "append_timeout_s": 20}, reader, tell, proxy.calm).run(cycles)
        verdict.text += f"; {reader.loaders} loaders, {reader.troubles} of them ended by the store"
        return verdict


@contextmanager
def _bad_network(folder: Path, seed: int, chance: float) -> Iterator[tuple[FaultProxy, StoreAddress]]:
    """An S3 server behind a proxy that fails so often, and a place on it: its address is without the proxy."""
    folder.mkdir()
    with (
        run_s3_server(folder) as server,
        FaultProxy(server.endpoint, evenly(chance), seed, slow_s=(0.02, 1.2)) as proxy,
    ):
        yield proxy, server.new_address()


def _leases(batches: int) -> LeasePlan:
    bad = max(1, batches // 200)
    return LeasePlan(batches, strikes=max(1, batches // 15), damaged=bad, missing=bad)


def _local_leases(folder: Path, seed: int, batches: int) -> Verdict:
    address = StoreAddress(str(folder / "leases" / "store"), {})
    return LeaseCycles(folder / "leases" / "cycles", seed, address, address, tell).run(_leases(batches))


def _in_order(folder: Path, seed: int, batches: int) -> Verdict:
    """One batch is out at a time, so every kill costs a lease's time."""
    address = StoreAddress(str(folder / "in order" / "store"), {})
    plan = LeasePlan(batches, strikes=max(1, batches // 3), in_order=True)
    return LeaseCycles(folder / "in order" / "cycles", seed, address, address, tell).run(plan)


def _s3_leases(folder: Path, seed: int, batches: int) -> Verdict:
    with _bad_network(folder / "s3 leases", seed, 0.15) as (proxy, direct):
        cycles = LeaseCycles(folder / "s3 lease cycles", seed, direct, through(proxy, direct, timeout="1s"), tell)
        return cycles.run(_leases(batches))


def _report(what: str, cycles: int, run: Callable[[int], Verdict]) -> Verdict:
    started_s = time.monotonic()
    verdict = run(cycles)
    took_s = time.monotonic() - started_s
    tell(f"{what}: {cycles} cycles in {took_s:.0f} s, {took_s / cycles:.2f} s each\n  {verdict}")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
