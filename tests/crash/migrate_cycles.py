"""`buffer migrate` killed again and again: each pair is in the new queue once, in the order of the old one.

A life is killed a moment after it said how far it is: right after it began, or after some windows. The moment is drawn
from a seed; what the process does then is up to it.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from buffer.clock import SystemClock
from buffer.codec.keyvalue import decode_pair
from buffer.config import ConsumerConfig
from buffer.consume.fetch import FetchHandle
from buffer.inspect.status import read_manifest
from buffer.legacy.config import IngestorConfig
from buffer.legacy.format import KeyValueEntry, encode_batch
from buffer.legacy.ingestor import Flusher
from buffer.produce.durability import Durable
from buffer.store import open_store
from tests.crash.verdict import Verdict
from tests.nets import HANGS_S

PAIRS_PER_BATCH = 3
BATCHES_PER_LIFE = 20
WINDOW = 5
MOMENT_MAX_S = 0.05
SAID_MAX = 4


class MigrateCycles:
    """An old queue, and the lives of a command that empties it."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder
        self.killed = 0
        self._random = random.Random(seed)
        self._tell = tell
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, kills: int) -> Verdict:
        """Kill it so often, then let it finish."""
        batches = kills * BATCHES_PER_LIFE
        self._fill(batches)
        while self.killed < kills and self._live():
            if self.killed % 10 == 0:
                self._tell(f"  killed {self.killed} times")
        while self._live(to_the_end=True):
            pass
        return self._judge(batches, kills)

    def _fill(self, batches: int) -> None:
        store = open_store(str(self.folder / "old"))
        flusher = Flusher(store, IngestorConfig(store=store), SystemClock())
        for first in range(0, batches, 100):
            settled = flusher.flush([self._batch(number) for number in range(first, min(first + 100, batches))])
            assert all(isinstance(each, Durable) for each in settled), settled

    @staticmethod
    def _batch(number: int) -> bytes:
        ids = range(number * PAIRS_PER_BATCH, (number + 1) * PAIRS_PER_BATCH)
        return encode_batch(KeyValueEntry(b"%d" % each, b"value %d" % each) for each in ids)

    def _live(self, *, to_the_end: bool = False) -> bool:
        """One life. False: it came to its end."""
        program = str(Path(sys.executable).with_name("buffer"))
        command = [program, "migrate", str(self.folder / "old"), str(self.folder / "new"), "--window", str(WINDOW)]
        with (
            (self.folder / "log").open("ab") as log,
            subprocess.Popen(command, stdout=log, stderr=subprocess.PIPE, text=True) as process,
        ):
            assert process.stderr is not None
            try:
                left = self._random.randint(1, SAID_MAX)
                for line in process.stderr:
                    log.write(line.encode())
                    left -= 1
                    if left == 0 and not to_the_end:
                        time.sleep(self._random.uniform(0, MOMENT_MAX_S))
                        process.kill()
                        self.killed += process.wait(HANGS_S) != 0
                        return True
                code = process.wait(HANGS_S)
            finally:
                process.kill()
        assert code == 0, (self.folder / "log").read_text()[-3000:]
        return False

    def _judge(self, batches: int, kills: int) -> Verdict:
        store = open_store(str(self.folder / "new"))
        reader = FetchHandle(store, prefixes=ConsumerConfig(store=store).prefixes())
        manifest = read_manifest(store, "ingest/manifest")
        found = [int(decode_pair(entry)[0]) for batch in manifest for entry in reader.fetch(batch).entries]
        expected = list(range(batches * PAIRS_PER_BATCH))
        verdict = Verdict(text=f"killed {self.killed} times, {len(found):,} pairs in {len(manifest):,} batches")
        verdict.add("lost", sorted(set(expected) - set(found)))
        verdict.add("twice", sorted({each for each in found if found.count(each) > 1}) if found != expected else [])
        verdict.add("out of order", [] if found == sorted(found) else found)
        if self.killed < kills:
            verdict.violations.append(f"it was to be killed {kills} times, and came to its end before")
        return verdict
