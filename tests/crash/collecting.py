"""Work for the collectors, and the check that they did it: what is needed is there, what is of no use is gone.

No batch of the last ten minutes may be deleted, and no run is to wait that long. So part of the batches are made by
a producer whose clock is behind. That is allowed here because no collector runs while it produces: between its
upload and its append, such a batch looks like one that a dead producer left behind long ago.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from buffer.clock import SystemClock, make_ulid
from buffer.config import GC_GRACE_MIN_S, ConsumerConfig, GcConfig
from buffer.consume.consumer import Consumer
from buffer.gc.collector import QUIET_GRACE_MS, Collector
from buffer.manifest import Manifest
from buffer.names import batch_ulid, ulid_time_ms
from buffer.store import open_store
from tests.crash.verdict import SHOWN_MAX

PREFIX = "ingest"
GRACE_MS = int(GC_GRACE_MIN_S * 1000)
BEHIND_MS = 3_600_000
"""How old the batches of the late clock are. Orphans are older: they never wait for a batch in the queue."""
OLD_MS = 2 * BEHIND_MS
QUIET_MS = 2 * QUIET_GRACE_MS
"""Old enough to go after two looks at a manifest that has not changed: every loader gets that far."""

OLD_ORPHANS = 10
NOTHING_LEFT = 1 << 63
"""As the committed sequence: all that was produced has been read."""
QUIET_ORPHANS = 60  # deleting them takes long enough for a kill to come in between
YOUNG_ORPHANS = 2


class LateClock(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - BEHIND_MS


def judge_objects(
    there: Iterable[str], needed: Iterable[str], made: Iterable[str], *, now_ms: int, due: Iterable[str] = ()
) -> list[str]:
    """Every violation in words. `now_ms` was read after `there` was listed; `due` must be gone by now."""
    there = set(there)
    young = {location for location in made if now_ms - _made_ms(location) <= GRACE_MS}
    wrong = {
        "needed, but deleted": set(needed) - there,
        "younger than the grace period, but deleted": young - there,
        "of no use and old, but still there": (set(due) & there) - young,
    }
    return [f"{len(names)} objects are {what}: {sorted(names)[:SHOWN_MAX]}" for what, names in wrong.items() if names]


def _made_ms(location: str) -> int:
    ulid = batch_ulid(location)
    assert ulid is not None, f"{location!r} is none of ours"
    return ulid_time_ms(ulid)


class BatchObjects:
    """Knows every batch object that was ever made in a queue on local files."""

    def __init__(self, store: Path, chance: random.Random) -> None:
        self._url = str(store)
        self._store = open_store(self._url)
        self._folder = store / PREFIX
        self._chance = chance
        self._clock = SystemClock()
        self._quiet: set[str] = set()
        """The quiet orphans that were there at the last look."""
        self.batches: dict[int, str] = {}
        """Location by sequence."""
        self.orphans: set[str] = set()
        self.collected = 0
        """Quiet orphans that are gone."""
        self.interrupted = 0
        """How often a collector left a part of them behind."""

    # Making

    def seed_orphans(self) -> None:
        """Batches as producers leave them that died between upload and append: long ago, and just now."""
        ages_ms = {QUIET_MS: QUIET_ORPHANS, OLD_MS: OLD_ORPHANS, 0: YOUNG_ORPHANS}
        for age_ms, count in ages_ms.items():
            for _ in range(count):
                ulid = make_ulid(self._clock.now_ms() - age_ms, self._chance.randbytes(10))
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / f"{ulid}.batch").write_bytes(b"orphan")  # not `put`: its two fsyncs are of no use
                self.orphans.add(f"{PREFIX}/{ulid}.batch")
        self._quiet = self._quiet_there()

    def note_batches(self) -> None:
        """Those that are in the queue now. Call it after each append, before anybody could dequeue one."""
        self.batches.update({entry.sequence: entry.location for entry in self._manifest()})

    # Looking

    def is_being_collected(self) -> bool:
        return self._quiet_there() != self._quiet

    def note_collected(self) -> None:
        """After the death of a collector."""
        left = self._quiet_there()
        self.collected += len(self._quiet - left)
        self.interrupted += bool(left) and left != self._quiet
        self._quiet = left

    def check(self, committed: int, due: Iterable[str] = ()) -> list[str]:
        """`committed`: the last sequence that every table has. Call it while no collector runs."""
        there = {item.location for item in self._store.list(PREFIX)}
        needed = {entry.location for entry in self._manifest()}
        needed |= {location for sequence, location in self.batches.items() if sequence > committed}
        return judge_objects(there, needed, self._made(), now_ms=self._clock.now_ms(), due=due)

    def check_quiet(self) -> list[str]:
        """After a collector that was left alone: it had time for two looks, and these need no more."""
        left = self._quiet_there()
        return [f"{len(left)} orphans of two days are left by a collector that nobody killed"] if left else []

    def collect_rest(self) -> None:
        """What dead collectors left is no worse than what nobody began: two looks, a claim in between."""
        with Collector(GcConfig(store=self._url)) as collector:
            collector.collect_once()
            Consumer.new(ConsumerConfig(store=self._url, gc_enabled=False)).close()
            collector.collect_once()

    def due(self) -> set[str]:
        """What the next collector must delete. Call it when the queue is empty."""
        now_ms = self._clock.now_ms()
        return {name for name in self._made() if now_ms - _made_ms(name) > GRACE_MS}

    def _made(self) -> set[str]:
        return self.orphans.union(self.batches.values())

    def _manifest(self) -> Manifest:
        return Manifest.from_bytes(self._store.get(f"{PREFIX}/manifest").data)

    def _quiet_there(self) -> set[str]:
        now_ms = self._clock.now_ms()
        names = (path.name for path in self._folder.glob("*.batch"))
        return {name for name in names if now_ms - _made_ms(name) > QUIET_GRACE_MS}
