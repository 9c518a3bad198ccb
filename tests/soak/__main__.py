"""The soak: `python -m tests.soak --minutes 20`.

Two queues under steady load at once, one on local files and one on a real S3 server behind a bad network, each
loaded into a Delta table of its own. Producers, loaders and collectors are killed, stopped and woken; the S3 server
is killed and restarted; collectors delete what is old. Some processes live from the beginning to the end and are
watched. Ends with 1 if an entry was lost or doubled, memory, handles or threads grew, a loader fell behind, or one of
the watched was not there to the end or did nothing; then its folder stays, for somebody to look at. Whatever goes
wrong on the way, the report is told.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from tests.crash.processes import await_true
from tests.crash.s3 import MortalS3, through
from tests.fault_proxy import FaultProxy, evenly
from tests.servers import StoreAddress
from tests.soak.chaos import Chaos
from tests.soak.collectors import MORTAL
from tests.soak.lane import STEADY, Lane
from tests.soak.watch import HEAP_UNIT, JUDGED_FROM_S, Watch

FAULT_SHARE = 0.15
SLOW_S = (0.05, 3.0)
PACE = {"calls_per_s": 15, "entries_max": 10, "padding_bytes": 100}
START_TIMEOUT_S = 240.0
DRAIN_TIMEOUT_S = 300.0
LAG_MAX_S = 120.0  # a loader dies, another one starts Spark, on a machine that does all of this at once
YOUNG_S = 300.0  # before the end: well within the grace period
SAMPLE_EVERY_S = 3.0
REPORT_EVERY_S = 30.0
TOLD_MAX = 30  # who dies at its start does so again and again; the number of all is told anyway


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Soak:
    def __init__(self, folder: Path, minutes: float, seed: int, stack: ExitStack) -> None:
        self.duration_s = minutes * 60
        self._folder = folder
        self.violations: list[str] = []
        self._began_s = time.monotonic()
        self.watch = Watch(self.seconds)
        (folder / "s3").mkdir()
        self.bad = stack.enter_context(FaultProxy(None, evenly(FAULT_SHARE), seed, slow_s=SLOW_S))
        self.good = stack.enter_context(FaultProxy(None))
        self.s3 = stack.enter_context(MortalS3(folder / "s3", self.bad, self.good))
        assert self.s3.server is not None
        raw = self.s3.server.new_address()
        self._bad_address = through(self.bad, raw, timeout="2s")
        self._good_address = through(self.good, raw, timeout="5s")
        self._local_address = StoreAddress(str(folder / "local" / "queue"))
        self.s3_lane = self._lane(stack, "s3", folder, self._good_address, self._bad_address)
        self.local_lane = self._lane(stack, "local", folder, self._local_address, self._local_address)
        self.local_lane.loader_collects = False  # a process of its own does, and lives on
        self.lanes = [self.s3_lane, self.local_lane]
        self.chaos = Chaos(seed, self.seconds, self.lanes)
        self.ran_s = 0.0
        self.happened: list[str] = []

    def _lane(self, stack: ExitStack, name: str, folder: Path, direct: StoreAddress, loader: StoreAddress) -> Lane:
        lane = Lane(name, folder / name, direct, loader, self.watch, PACE)
        stack.callback(lane.close)
        return lane

    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    # Running

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """What fails in there is a violation, and no reason to say nothing about all the rest."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - after twenty minutes everything that can be told is told
            traceback.print_exc()
            self.violations.append(f"{what}: {error!r}")

    def run(self) -> None:
        with self._noting("the start"):
            self._start()
            self._began_s = time.monotonic()  # from here on: whoever is watched is up
            with self._noting("the load"):
                self._load()
            self.ran_s = self.seconds()
        with self._noting("saving the samples"):
            self.watch.save(self._folder / "samples.csv")
        self._end()

    def _load(self) -> None:
        next_sample_s, next_report_s = 0.0, REPORT_EVERY_S
        restart_s, young_s = self.duration_s * 0.5, max(0.0, self.duration_s - YOUNG_S)
        young = False
        while self.seconds() < self.duration_s:
            time.sleep(0.2)
            for lane in self.lanes:
                lane.tick()
            self.chaos.tick()
            if self.s3.lives == 1 and self.seconds() > restart_s:
                self._restart_server()
            if not young and self.seconds() > young_s:
                young = True
                for lane in self.lanes:
                    lane.young = lane.seed_orphans(0)
            if self.seconds() >= next_sample_s:
                next_sample_s = self.seconds() + SAMPLE_EVERY_S
                self.watch.sample()
            if self.seconds() >= next_report_s:
                next_report_s += REPORT_EVERY_S
                self._tell_how_it_goes()
                if self.seconds() < self.duration_s * 2 / 3:  # whatever is to be deleted then has the time to be
                    for lane in self.lanes:
                        lane.feed_collectors()

    def _start(self) -> None:
        tell("starting: two loaders, five producers, a collector …")
        bad, good, local = self._bad_address, self._good_address, self._local_address
        self.s3_lane.start({STEADY: bad, "mortal": bad, "clean": good})
        self.local_lane.start({STEADY: local, "mortal": local})
        collector = self.local_lane.collectors.start_steady()
        for lane in self.lanes:
            lane.loaders[0].wait_for("progress", START_TIMEOUT_S)
            self.watch.follow(f"{lane.name} producer", lane.producers[STEADY].pid)
        loader = self.local_lane.loaders[0]
        self.local_lane.watched_loader = loader.pid
        jvm = next(child for child in psutil.Process(loader.pid).children() if "java" in child.name())
        self.watch.follow("local loader, driver", loader.pid)
        self.watch.follow("local loader, JVM", jvm.pid)
        self.watch.follow_family("local loader", loader.pid, besides={jvm.pid})
        self.watch.expect(self.local_lane.heap_series, HEAP_UNIT)
        self.watch.follow("local collector", collector.pid)

    def _restart_server(self) -> None:
        tell(f"{self.seconds():6.0f} s  the S3 server is killed …")
        self.s3.kill()
        time.sleep(2.0)
        took_s = self.s3.start()
        tell(f"{self.seconds():6.0f} s  … and is back after {took_s:.1f} s")

    def _tell_how_it_goes(self) -> None:
        parts = []
        for lane in self.lanes:
            lag_s = lane.lags_s[-1][1] if lane.lags_s else 0.0
            parts.append(f"{lane.name}: {lane.commits} commits, lag {lag_s:.1f} s, {lane.events.total()} events")
        tell(f"{self.seconds():6.0f} s  {'; '.join(parts)}")

    # Ending

    def _end(self) -> None:
        tell("the load stops; what is in the queues is loaded …")
        with self._noting("the end of the faults"):
            self.bad.calm()
            self.happened = list(self.chaos.end())
        for lane in self.lanes:
            with self._noting(f"{lane.name}: stopping the producers"):
                lane.stop_producers()
        for lane in self.lanes:
            with self._noting(f"{lane.name}: not drained, so what waits there counts as lost"):
                await_true(partial(self._is_drained, lane), DRAIN_TIMEOUT_S, f"{lane.name} is drained")
        for lane in self.lanes:
            with self._noting(f"{lane.name}: stopping the loaders"):
                lane.stop_loaders()
            with self._noting(f"{lane.name}: stopping the collectors"):
                lane.collectors.stop()

    def _is_drained(self, lane: Lane) -> bool:
        for each in self.lanes:
            each.tick()
        if not lane.loaders:
            lane.start_loader()  # the last one was fenced by a successor that was killed
        time.sleep(0.5)
        return lane.waiting() == 0

    def report(self) -> bool:
        """Tell everything; True if all is well."""
        tell(f"\nafter {self.ran_s:.0f} s of load:")
        for text in self.happened:
            tell(f"  {text}")
        faults = ", ".join(f"{count} {fault.value}" for fault, count in self.bad.counts.most_common())
        tell(f"  requests: {faults}; {self.bad.unanswered + self.good.unanswered} while the server was down")
        for lane in self.lanes:
            self.violations += lane.wrong()
            with self._noting(f"{lane.name}: the verdict"):
                self._check_entries(lane)
            with self._noting(f"{lane.name}: the objects"):
                self._check_objects(lane)
            self.violations += self._check_lag(lane)
        self.violations += self._check_growth()
        for text in self.violations[:TOLD_MAX]:
            tell(f"VIOLATION {text}")
        tell("all is well" if not self.violations else f"{len(self.violations)} violations")
        return not self.violations

    def _check_entries(self, lane: Lane) -> None:
        verdict = lane.check()
        tell(f"{lane.name}: {verdict}")
        self.violations += verdict.violations
        if not verdict.durable:
            self.violations.append(f"{lane.name}: nothing was durable")

    def _check_objects(self, lane: Lane) -> None:
        objects, wrong = lane.check_objects()
        tell(f"  {lane.commits} commits, {objects} batch objects are left\n  {lane.collectors}")
        self.violations += wrong
        if self.ran_s >= JUDGED_FROM_S and not lane.collectors.rounds[MORTAL]:
            self.violations.append(f"{lane.name}: no collector that is to be killed did a round")

    def _check_lag(self, lane: Lane) -> list[str]:
        first_s = self._began_s
        lags = [(at_s - first_s, lag_s) for at_s, lag_s in lane.lags_s if 0 <= at_s - first_s <= self.ran_s]
        if not lags:
            return [f"{lane.name}: nobody saw its lag"]
        early = [lag_s for at_s, lag_s in lags if at_s <= self.ran_s / 3] or [0.0]
        late = [lag_s for at_s, lag_s in lags if at_s >= self.ran_s * 2 / 3] or [0.0]
        worst = max(lag_s for _, lag_s in lags)
        tell(
            f"  lag: median {median(early):.1f} s in the first third, {median(late):.1f} s in the last; "
            f"worst {worst:.1f} s"
        )
        wrong = [f"{lane.name}: it fell {worst:.0f} s behind, {LAG_MAX_S:g} are allowed"] if worst > LAG_MAX_S else []
        if median(late) > 2 * median(early) + 15:
            wrong.append(f"{lane.name}: the lag grows: {median(early):.1f} s at first, {median(late):.1f} s late")
        return wrong

    def _check_growth(self) -> list[str]:
        growths = self.watch.judge(self.ran_s)
        tell(f"{'':<34}{'first':>9}{'last':>9}")
        for growth in growths:
            tell(str(growth))
        if self.ran_s < JUDGED_FROM_S:
            tell(f"(growth is judged only from {JUDGED_FROM_S / 60:g} minutes on)")
            return []
        return [f"{growth.name}: {growth.leak}" for growth in growths if growth.leak]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of load; default: %(default)g")
    parser.add_argument("--seed", type=int, help="of faults and kills; default: a new one")
    options = parser.parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="buffer-soak-"))
    tell(f"seed {seed}, in {folder}")
    with ExitStack() as stack:
        soak = Soak(folder, options.minutes, seed, stack)
        soak.run()
        well = soak.report()
    if not well:
        tell(f"FAILED with seed {seed}; look at {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
