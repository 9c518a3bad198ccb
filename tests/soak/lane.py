"""One queue with all that belongs to it: producers, loaders that replace each other, a Delta table, orphans.

A lane keeps its processes going; `chaos.py` is what they have to live with, `__main__.py` what they end with.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from buffer.errors import BufferQueueError, StorageError
from buffer.inspect.status import queue_status
from buffer.names import batch_ulid, ulid_time_ms
from buffer.store import Store, open_store
from tests.consume.consumer_support import ulid_at
from tests.crash.delta_files import DeltaFiles
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict, judge
from tests.servers import StoreAddress
from tests.soak.collectors import Collectors
from tests.soak.watch import HEAP_UNIT, MIB, Watch

STEADY = "steady"
"""The producer of each lane that lives from the beginning to the end and is watched."""
GRACE_S = 600.0
ORPHANS = 100
HOUR_MS = 3_600_000
RIGHT_ERRORS = {"Fenced", "StorageError", "Throttled", "ContentionError"}
"""What may end a loader here: a successor, or a store that was away for too long. Anything else is a finding."""
LAG_EVERY_S = 2.0
_IMPATIENT = {"max_retries": 1, "retry_timeout": timedelta(seconds=2)}


@dataclass
class Lane:
    """Made with the addresses under which its processes reach the store; `direct` is for looking at it."""

    name: str
    folder: Path
    direct: StoreAddress
    loader_address: StoreAddress
    watch: Watch
    pace: dict[str, Any]
    """`calls_per_s`, `entries_max`, `padding_bytes` of each producer."""
    gc_interval_s: float = 10.0
    loader_collects: bool = True
    producers: dict[str, Worker] = field(default_factory=dict)
    loaders: list[Worker] = field(default_factory=list)
    watched_loader: int | None = None
    """The pid of the one that is to live as long as the soak."""
    stopping: bool = False
    commits: int = 0
    lags_s: list[tuple[float, float]] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _addresses: dict[str, StoreAddress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "logs").mkdir(parents=True)
        self._started: Counter[str] = Counter()
        self._processes = ExitStack()
        self.collectors = Collectors(self._start_collector, self.gc_interval_s)
        self._lag_ended = threading.Event()
        self._lag_thread = threading.Thread(target=self._watch_lag, name=f"lag of {self.name}", daemon=True)
        self.orphans = self.seed_orphans(2 * HOUR_MS)
        self.young: set[str] = set()

    @property
    def heap_series(self) -> str:
        return f"{self.name} loader: heap in use"

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def open(self) -> Store:
        return self.direct.open()

    # Starting and replacing

    def start(self, addresses: dict[str, StoreAddress]) -> None:
        """A producer for each name, and the first loader."""
        self._addresses = addresses
        for role in addresses:
            self._start_producer(role)
        self.start_loader()
        self._lag_thread.start()

    def _start_producer(self, role: str) -> None:
        self._started[role] += 1
        name = f"{self.name}-{role}-{self._started[role]}"
        address = self._addresses[role]
        settings = {"store": address.url, "store_options": address.options, "flush_interval_ms": 400}
        options = {"name": name, "log": str(self.folder / f"logs/{name}.log"), "settings": settings, **self.pace}
        if role == STEADY:
            options["first_call_entries"] = 1000
        self.producers[role] = self._keep(Worker("tests.crash.producing", options, self.folder / f"{name}.stderr"))

    def start_loader(self) -> Worker:
        self._started["loader"] += 1
        config = {
            "store": self.loader_address.url,
            "store_options": self.loader_address.options,
            "table": str(self.table),
            "format": {"type": "json", "schema": "by STRING, id BIGINT"},
            "gc_enabled": self.loader_collects,
            "gc_interval_s": self.gc_interval_s,
        }
        log = self.folder / f"loader-{self._started['loader']}.stderr"
        loader = self._keep(Worker("tests.soak.loading", {"config": config}, log))
        self.loaders.append(loader)
        return loader

    def _start_collector(self, role: str) -> Worker:
        """By the loader's way to the store: on a bad network a round lasts long enough to be killed in its middle."""
        options: dict[str, Any] = {"store": self.loader_address.url, "store_options": self.loader_address.options}
        options["gc_interval_s"] = self.gc_interval_s
        return self._keep(Worker("tests.soak.collecting", options, self.folder / f"collector-{role}.stderr"))

    def feed_collectors(self) -> None:
        """New orphans, once the old ones are deleted: who has nothing to delete is killed in vain. The mortal
        collector comes with the second lot: the first is for the others to show that they can do it alone."""
        try:
            if self.orphans & self._batch_objects():
                return
            self.orphans |= self.seed_orphans(2 * HOUR_MS)
        except StorageError:
            return  # later, then
        if self.collectors.mortal is None:
            self.collectors.start_mortal()

    def _keep(self, worker: Worker) -> Worker:
        return self._processes.enter_context(worker)

    def tick(self) -> None:
        """Hear what they say, and replace who is gone."""
        self.collectors.tick()
        for loader in list(self.loaders):
            self._hear(loader)
            if not loader.is_alive:
                loader.kill()
                self.loaders.remove(loader)
                if loader.pid == self.watched_loader:
                    self.violations.append(f"{self.name}: the loader that was to live ended; see {loader.log}")
        if self.stopping:
            return
        if not self.loaders:
            self.start_loader()
        for role, producer in list(self.producers.items()):
            if not producer.is_alive:
                self.violations.append(f"{self.name}: a producer ended by itself: {producer.last_words(500)}")
                self._start_producer(role)

    def _hear(self, loader: Worker) -> None:
        for message in loader.heard():
            if "progress" in message:
                self.commits += 1
            elif "heap_bytes" in message and loader.pid == self.watched_loader:
                self.watch.note(self.heap_series, HEAP_UNIT, message["heap_bytes"] / MIB)
            elif "error" in message:
                self.events[f"loader ended: {message['error']}"] += 1
                if message["error"] not in RIGHT_ERRORS:
                    self.violations.append(f"{self.name}: a loader failed: {message}; see {loader.log}")

    def replace_producer(self, role: str) -> None:
        """kill -9, and a new one under a new name."""
        self.producers[role].kill()
        self._start_producer(role)

    # Ending

    def stop_producers(self) -> None:
        self.stopping = True
        for role, producer in self.producers.items():
            if producer.frozen:
                producer.thaw()
            if producer.end() != 0:
                self.violations.append(f"{self.name}: producer {role} did not end well: {producer.last_words()}")

    def waiting(self) -> int:
        """Batches in the queue."""
        return queue_status(self.open(), data_path_prefix=None).length

    def stop_loaders(self) -> None:
        for loader in self.loaders:
            if loader.frozen:
                loader.thaw()
            loader.end()
            self._hear(loader)
        self.loaders.clear()
        self._lag_ended.set()
        self._lag_thread.join()

    def wrong(self) -> Sequence[str]:
        """What was noticed while it ran."""
        return [*self.violations, *(f"{self.name}: {text}" for text in self.collectors.violations)]

    def close(self) -> None:
        self._lag_ended.set()
        self._processes.close()

    def _watch_lag(self) -> None:
        url, options = self.direct.url, self.direct.options
        store = open_store(url, **({**options, "retry_config": _IMPATIENT} if options else {}))
        while not self._lag_ended.wait(LAG_EVERY_S):
            try:
                lag_s = queue_status(store, data_path_prefix=None).lag_seconds
                self.lags_s.append((time.monotonic(), lag_s))
            except StorageError:
                continue  # the server is being restarted, or the queue does not exist yet
            except BufferQueueError as error:
                self.violations.append(f"{self.name}: looking at the queue: {error!r}")

    # Checking

    def seed_orphans(self, age_ms: int) -> set[str]:
        """Batches as a producer leaves them that died between upload and append."""
        store = self.open()
        made_ms = time.time_ns() // 1_000_000 - age_ms
        names = {f"ingest/{ulid_at(made_ms, number)}.batch" for number in range(ORPHANS)}
        for name in names:
            store.put(name, b"orphan")
        return names

    def check(self) -> Verdict:
        """Exactly once: the producers' logs against the table."""
        table = DeltaFiles(self.table, ["by", "id"])
        table.refresh()
        rows = table.rows()
        found: defaultdict[str, list[int]] = defaultdict(list)
        for name, number in zip(rows["by"].to_pylist(), rows["id"].to_pylist(), strict=True):
            found[name].append(number)
        verdict = judge((self.folder / "logs").glob("*.log"), found)
        verdict.violations += table.violations
        if table.repeated_positions():
            verdict.violations.append(f"{self.name}: (_sequence, _index) is not unique")
        return verdict

    def check_objects(self) -> tuple[int, Sequence[str]]:
        """How many batch objects are there, and what is wrong with that."""
        now_ms = time.time_ns() // 1_000_000
        objects = self._batch_objects()
        wrong = []
        if self.orphans & objects:
            wrong.append(f"{self.name}: {len(self.orphans & objects)} old orphans were not collected")
        if self.young - objects:
            wrong.append(f"{self.name}: {len(self.young - objects)} objects within the grace period are gone")
        overdue_ms = (GRACE_S + 12 * self.gc_interval_s + 60) * 1000  # two looks, and a loader that was away
        overdue = [name for name in objects if now_ms - ulid_time_ms(batch_ulid(name) or "") > overdue_ms]
        if overdue:
            wrong.append(f"{self.name}: {len(overdue)} objects are overdue for collection, like {overdue[0]}")
        return len(objects), wrong

    def _batch_objects(self) -> set[str]:
        return {info.location for info in self.open().list("ingest") if batch_ulid(info.location)}
