"""A day of cron in an hour: `python -m tests.soak.cron --runs 200`.

A trickle of batches, and `buffer-delta load --available-now` as a process of its own again and again, as cron would
start it. Every fourth time the queue is empty. Ends with 1 if a row is lost or doubled, a run with nothing to load
starts Spark, or something grows with the number of runs: batch objects, manifest, ledger, files of the table, commits
since the last checkpoint, files of the table's log. The batches are named twenty minutes in the past, so that what is
loaded is old enough to go at once; no append is under way while a loader runs. The table keeps its log for an hour, and
Delta counts in whole days: so after each run what is in the log is dated back by two days.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from buffer.clock import SystemClock, make_ulid
from buffer.config import ProducerConfig
from buffer.produce.producer import Producer

BATCHES = 3  # of each run that finds some
ENTRIES = 10
IDLE_EVERY = 4
AGE_MS = 20 * 60 * 1000
COMPACT_EVERY = 10
CHECKPOINT_EVERY = 10
# What may be there however many runs there were.
OBJECTS_MAX = 2 * BATCHES  # of the run before, until this one's second look, and of this one
FILES_MAX = 2 * COMPACT_EVERY + 5
BEHIND_CHECKPOINT_MAX = 2 * CHECKPOINT_EVERY
# Each commit has a file, Delta's checksum of it, and Hadoop's of both; those before the last checkpoint go with the
# next one. And a few for the checkpoint itself.
LOG_FILES_MAX = 4 * BEHIND_CHECKPOINT_MAX + 10
LOG_AGE_S = 2 * 24 * 3600
MANIFEST_BYTES_MAX = 1000
LEDGER_BYTES_MAX = 4000


class TwentyMinutesAgo(SystemClock):
    """Names batches in the past."""

    def new_ulid(self) -> str:
        return make_ulid(self.now_ms() - AGE_MS, os.urandom(10))


class Cron:
    def __init__(self, folder: Path) -> None:
        self.queue, self.table = folder / "queue", folder / "table"
        self.produced = 0
        self.violations: list[str] = []

    def trickle(self) -> None:
        config = ProducerConfig(store=str(self.queue), flush_interval_ms=60_000)
        with Producer(config, clock=TwentyMinutesAgo()) as producer:
            for _ in range(BATCHES):
                producer.produce([b'{"id":%d}' % (self.produced + n) for n in range(ENTRIES)])
                producer.flush()
                self.produced += ENTRIES

    def run(self) -> tuple[float, str]:
        """One start, as cron's. Returns its seconds and what it said last."""
        command = [sys.executable, "-m", "buffer_delta", "load", "--available-now", "--store", str(self.queue)]
        command += ["--table", str(self.table), "--format", "json", "--schema", "id BIGINT"]
        command += ["--set", f"compact_every_commits={COMPACT_EVERY}"]
        command += ["--table-property", f"delta.checkpointInterval={CHECKPOINT_EVERY}"]
        for kept in ("logRetentionDuration", "deletedFileRetentionDuration"):  # Delta wants the first no shorter
            command += ["--table-property", f"delta.{kept}=interval 1 hours"]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.violations.append(f"a run ended with {done.returncode}: {done.stderr[-1000:]}")
        is_idle = "nothing to load" in done.stdout
        if is_idle and "starting Spark" in done.stderr:
            self.violations.append("Spark was started for an empty queue")
        return time.monotonic() - started, (done.stdout.splitlines() or [""])[-1]

    def age_the_log(self) -> None:
        """As if everything in it had been written two days ago."""
        then_s = time.time() - LOG_AGE_S
        for file in (self.table / "_delta_log").iterdir():
            if file.is_file() and file.stat().st_mtime > then_s + LOG_AGE_S / 2:
                os.utime(file, (then_s, then_s))

    def look(self) -> dict[str, int]:
        """What there is now; more than may be is a violation."""
        version, files = self._table_files()
        found = {
            "objects": len(list((self.queue / "ingest").glob("*.batch"))),
            "manifest bytes": (self.queue / "ingest" / "manifest").stat().st_size,
            "ledger bytes": (self.queue / "ingest" / "manifest.ledger").stat().st_size,
            "files": len(files),
            "commits since the last checkpoint": version - self._checkpoint(),
            "files of the log": len([file for file in (self.table / "_delta_log").iterdir() if file.is_file()]),
        }
        allowed = (OBJECTS_MAX, MANIFEST_BYTES_MAX, LEDGER_BYTES_MAX, FILES_MAX, BEHIND_CHECKPOINT_MAX, LOG_FILES_MAX)
        for (name, count), most in zip(found.items(), allowed, strict=True):
            if count > most:
                self.violations.append(f"{count} {name}, {most} may be there")
        return found

    def check_rows(self) -> None:
        _, files = self._table_files()
        ids = sorted(number for name in files for number in pq.read_table(self.table / name)["id"].to_pylist())
        if ids != list(range(self.produced)):
            self.violations.append(
                f"{self.produced} rows were produced, {len(ids)} are there, {len(set(ids))} distinct"
            )

    def _table_files(self) -> tuple[int, set[str]]:
        """The newest version, and the files that are in it, as another reader finds them."""
        table = DeltaTable(str(self.table))
        found = table.get_add_actions(flatten=True)
        return table.version(), set(found.column("path").to_pylist())

    def _checkpoint(self) -> int:
        pointer = self.table / "_delta_log" / "_last_checkpoint"
        return int(json.loads(pointer.read_text())["version"]) if pointer.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Many short loads of a trickle: nothing may grow.")
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cron = Cron(Path(folder))
        for number in range(1, options.runs + 1):
            if number % IDLE_EVERY:
                cron.trickle()
            seconds, said = cron.run()
            cron.age_the_log()
            found = ", ".join(f"{name} {count}" for name, count in cron.look().items())
            _tell(f"{number:4d}  {seconds:5.1f} s  {said}  [{found}]")
        cron.check_rows()
    for violation in cron.violations:
        _tell(f"VIOLATION: {violation}")
    _tell(f"{options.runs} runs, {cron.produced:,} rows produced, {len(cron.violations)} violations")
    return 1 if cron.violations else 0


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
