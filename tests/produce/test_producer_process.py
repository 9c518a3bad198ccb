"""The producer and its process: kills, forks, exits, memory."""

from __future__ import annotations

import ast
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import decode_batch
from buffer.config import ProducerConfig
from buffer.produce.engine import ProducerEngine
from buffer.queue import QueueConsumer
from buffer.store import open_store
from buffer.testing import ManualClock
from tests.few_threads import allow_threads
from tests.nets import HANGS_S
from tests.produce import producer_victims
from tests.produce.producer_support import entries_of, make_producer, objects_of, queue_of

KILLS = 50
FORKS = producer_victims.FORKS
SCRIPT = str(Path(producer_victims.__file__))


def _run(what: str, folder: Path, *options: str, timeout: float = HANGS_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, SCRIPT, what, str(folder)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_should_keep_every_promise_when_killed_at_random_moments(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    command = [sys.executable, SCRIPT, "nursery", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for start in range(0, KILLS, 2):  # two at a time: they fight for the manifest as well
            pids = []
            for name in (start, start + 1):
                print(f"p{name}", file=nursery.stdin, flush=True)
                pids.append(int(nursery.stdout.readline()))
            for pid in pids:
                time.sleep(moments.uniform(0.0, 0.1))
                os.kill(pid, signal.SIGKILL)
        nursery.stdin.close()

    store = open_store(str(tmp_path / "queue"))
    said_durable = [line for log in tmp_path.glob("p*.log") for line in log.read_bytes().split(b"\n")[:-1]]
    found = Counter(entries_of(store))
    assert len(said_durable) > KILLS, f"too few to mean anything; seed {seed}"
    assert [entry for entry in said_durable if found[entry] != 1] == [], f"seed {seed}"
    assert [entry for entry, times in found.items() if times != 1] == [], f"seed {seed}"
    for location in objects_of(store):  # also those that were uploaded and never appended
        decode_batch(store.get(location).data)
    with make_producer(store) as producer:
        producer.produce([b"life goes on"])
    assert entries_of(store)[-1] == b"life goes on"


def test_should_refuse_calls_in_a_forked_child_and_work_on_in_the_parent(tmp_path: Path) -> None:
    done = _run("forks", tmp_path)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == [0] * FORKS, done.stderr
    counts = Counter(entries_of(open_store(str(tmp_path / "queue"))))
    assert counts[b"before the fork"] == FORKS
    assert set(counts) == {b"before the fork", b"busy"}
    assert entries_of(open_store(str(tmp_path / "own"))) == [b"own"] * FORKS


def test_should_warn_and_flush_when_the_interpreter_exits_without_close(tmp_path: Path) -> None:
    done = _run("leaves", tmp_path, "-W", "always::ResourceWarning")
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" in done.stderr
    assert "never closed" in done.stderr
    assert entries_of(open_store(str(tmp_path / "queue"))) == [b"left behind"]


def test_should_flush_at_exit_where_warnings_are_errors(tmp_path: Path) -> None:
    done = _run("leaves", tmp_path, "-W", "error::ResourceWarning")
    assert "never closed" in done.stderr
    assert entries_of(open_store(str(tmp_path / "queue"))) == [b"left behind"]


def test_should_not_hold_up_the_exit_when_the_store_hangs(tmp_path: Path) -> None:
    done = _run("hangs", tmp_path)  # its upload takes an hour
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_should_keep_memory_flat_over_ten_thousand_flushes() -> None:
    store = open_store("memory://")
    consumer = QueueConsumer(store, "ingest/manifest", ManualClock())
    process = psutil.Process()
    used: list[int] = []
    with make_producer(store, flush_size_bytes=1, max_buffered_bytes=20_000) as producer:
        for thousand in range(12):
            handles = [producer.produce([b"x" * 1000], b"some metadata") for _ in range(1000)]
            producer.flush()
            assert all(handle.watcher.result() is not None for handle in handles)
            # What a consumer and its collector would do.
            locations = [entry.location for entry in queue_of(store)]
            assert len(locations) == 1000
            consumer.claim()
            consumer.dequeue(1000 * thousand + 999)
            store.delete_many(locations)
            gc.collect()
            used.append(process.memory_info().rss)
    assert objects_of(store) == set()
    assert used[-1] <= used[1] * 1.1, [f"{rss >> 20} MiB" for rss in used]


@pytest.mark.parametrize("started", [0, 1, 4])
def test_should_end_the_threads_it_has_when_it_cannot_have_them_all(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    """Nobody has such a producer to close it, and the interpreter waits for what it finds at its end."""
    engine = ProducerEngine(ProducerConfig(store="memory://"), SystemClock())
    threads = list(engine._threads)
    with monkeypatch.context() as patch:
        allow_threads(patch, started)
        with pytest.raises(RuntimeError, match="start new thread"):
            engine.start()
    assert engine.abandon_at_exit() is None
    engine.await_at_exit(SystemClock().monotonic_s() + HANGS_S)
    assert not any(thread.is_alive() for thread in threads)
