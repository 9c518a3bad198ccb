"""What happens to the processes of the lanes: kill -9, SIGSTOP and SIGCONT, at moments that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from tests.crash.processes import Worker
from tests.soak.lane import STEADY, Lane

PRODUCERS_EVERY_S = (3.0, 12.0)
LOADERS_EVERY_S = (35.0, 70.0)  # a loader needs half of that to start, on two cores
COLLECTORS_EVERY_S = (20.0, 60.0)  # it needs two rounds before it deletes anything
COMMITS_BETWEEN = 3
FREEZE_S = (1.0, 8.0)
COLLECTOR_FREEZE_S = (5.0, 40.0)  # long enough for others to delete what it was about to, and for commits
SUCCESSION_S = (25.0, 40.0)  # how long a loader stands still while its successor starts, takes over and commits


@dataclass
class Chaos:
    """`tick` it often; whatever is due happens then."""

    seed: int
    seconds: Callable[[], float]
    lanes: list[Lane]
    _due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} chaos")
        self._commits: dict[str, int] = {}
        for lane in self.lanes:
            self._plan(PRODUCERS_EVERY_S, partial(self._torment_producer, lane))
            self._plan(LOADERS_EVERY_S, partial(self._torment_loader, lane))
            self._plan(COLLECTORS_EVERY_S, partial(self._torment_collector, lane))

    def _plan(self, within_s: tuple[float, float], act: Callable[[], None]) -> None:
        self._due.append((self.seconds() + self._chance.uniform(*within_s), act))

    def tick(self) -> None:
        now_s = self.seconds()
        due = [act for at_s, act in self._due if at_s <= now_s]
        self._due = [(at_s, act) for at_s, act in self._due if at_s > now_s]
        for act in due:
            act()

    def _torment_producer(self, lane: Lane) -> None:
        self._plan(PRODUCERS_EVERY_S, partial(self._torment_producer, lane))
        role = self._chance.choice(sorted(lane.producers))
        producer = lane.producers[role]
        if producer.frozen:
            return
        if role == STEADY or self._chance.random() < 0.4:
            self._freeze(lane, producer, "producer", FREEZE_S)
        else:
            lane.replace_producer(role)
            lane.events["producer killed"] += 1

    def _torment_loader(self, lane: Lane) -> None:
        loaders = [loader for loader in lane.loaders if loader.is_alive and not loader.frozen]
        if not loaders or lane.commits < self._commits.get(lane.name, 0) + COMMITS_BETWEEN:
            # Whoever kills each loader before its first commit proves nothing but that no work gets done.
            self._plan(PRODUCERS_EVERY_S, partial(self._torment_loader, lane))
            return
        self._commits[lane.name] = lane.commits
        self._plan(LOADERS_EVERY_S, partial(self._torment_loader, lane))
        loader = self._chance.choice(loaders)
        if loader.pid == lane.watched_loader:
            self._freeze(lane, loader, "loader", FREEZE_S)
            return
        match self._chance.choice(["kill", "kill the driver", "freeze", "succeed"]):
            case "kill":
                loader.kill()
                lane.events["loader killed"] += 1
            case "kill the driver":
                loader.kill(group=False)  # its JVM ends when it notices, perhaps after one more commit
                lane.events["loader's driver killed"] += 1
                lane.start_loader()
            case "freeze":
                self._freeze(lane, loader, "loader", FREEZE_S)
            case "succeed":
                self._freeze(lane, loader, "loader with a successor", SUCCESSION_S)
                lane.start_loader()

    def _torment_collector(self, lane: Lane) -> None:
        """The one that is there for it. The watched one lives in peace: its silence is a finding."""
        self._plan(COLLECTORS_EVERY_S, partial(self._torment_collector, lane))
        collector = lane.collectors.mortal
        if collector is None or collector.frozen:
            return
        if self._chance.random() < 0.4:
            self._freeze(lane, collector, "collector", COLLECTOR_FREEZE_S)
        else:
            lane.collectors.replace_mortal()
            lane.events["collector killed"] += 1

    def _freeze(self, lane: Lane, worker: Worker, what: str, within_s: tuple[float, float]) -> None:
        worker.freeze(group=self._chance.random() < 0.5)
        lane.events[f"{what} stopped and woken"] += 1
        self._plan(within_s, partial(_thaw, worker))

    def end(self) -> Iterator[str]:
        """Everybody is awake again, and nothing more will happen."""
        self._due.clear()
        for lane in self.lanes:
            for worker in (*lane.producers.values(), *lane.loaders, *lane.collectors):
                _thaw(worker)
            yield from (f"{lane.name}: {count} x {what}" for what, count in sorted(lane.events.items()))


def _thaw(worker: Worker) -> None:
    if worker.frozen:
        worker.thaw()
