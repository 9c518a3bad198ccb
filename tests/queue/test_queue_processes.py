"""Many processes append to one manifest at once: every location is there, once, where its process was told."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from buffer.manifest import Manifest
from tests.nets import HANGS_S
from tests.queue.queue_support import PATH
from tests.servers import StoreAddress

PROCESSES = 8
LOCATIONS_EACH = 50
ROOT = Path(__file__).parents[2]


def start(address: StoreAddress, locations: list[str], stack: ExitStack) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.queue.queue_worker"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(worker)
    stack.callback(worker.kill)  # does nothing to one that has ended
    assert worker.stdin is not None
    job = {"url": address.url, "options": address.options, "path": PATH, "locations": locations}
    worker.stdin.write(json.dumps(job) + "\n")
    worker.stdin.flush()
    return worker


def test_should_append_each_location_once_from_many_processes(shared_address: StoreAddress) -> None:
    wanted = [[f"ingest/{p}-{i:02}.batch" for i in range(LOCATIONS_EACH)] for p in range(PROCESSES)]
    with ExitStack() as stack:
        workers = [start(shared_address, locations, stack) for locations in wanted]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", worker.stderr and worker.stderr.read()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told: dict[str, int] = {}
        for worker, locations in zip(workers, wanted, strict=True):
            output, errors = worker.communicate(timeout=HANGS_S)
            assert worker.returncode == 0, errors
            sequences = {location: sequence for location, (sequence,) in json.loads(output).items()}
            assert list(sequences) == locations
            assert sorted(sequences.values()) == list(sequences.values())  # each process's own order is kept
            told |= sequences
    manifest = Manifest.from_bytes(shared_address.open().get(PATH).data)
    assert (len(manifest), manifest.next_sequence, manifest.epoch) == (400, 400, 0)
    assert {entry.location: entry.sequence for entry in manifest} == told
    assert len(told) == PROCESSES * LOCATIONS_EACH
    assert sorted(told.values()) == list(range(400))
