"""Everything of one run: the store, the network, the witness, and the actors with their supervisor.

An actor is something that would be a program in production. To add a kind of actor, write a small file with a
subclass of `Actor` whose `run` is one life of it: production code on a simulated store and clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from buffer.testing.simulator.clock import START_MS, SimulatedClock
from buffer.testing.simulator.faults import Network, Span, Weather, between
from buffer.testing.simulator.scheduler import Process, Scheduler, Violation, describe_error
from buffer.testing.simulator.store import ObjectServer, StoreClient
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.witness import QueueWitness

MANIFEST_PATH = "ingest/manifest"
PREFIX = "ingest"
CALM_REST_FACTOR = 20.0
GLANCES = 1000  # per storm
GLANCE_S_MIN = 0.01
EVENTS_MAX = 60_000  # a run that needs more is stuck in a loop


@dataclass(frozen=True, slots=True)
class Host:
    """What one life of an actor has of the world."""

    process: Process
    store: StoreClient
    clock: SimulatedClock


class Actor(ABC):
    """A program and its supervisor: what outlives a crash is kept here, what does not is local to `run`."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.process: Process | None = None
        self.starts_pending = 0
        self.is_sheltered = False
        self.clock_off_s = 0.0
        """How far the wall clock of its machine is off, on top of what the weather does to it."""
        """Nothing bad happens to it."""

    @abstractmethod
    def run(self, host: Host) -> None:
        """One life, until there is nothing more to do, an error, or a crash."""

    def ended(self, error: Exception | None) -> float | None:
        """`run` returned or raised. Returns the seconds until it is started again; None: never.

        By default an error is a violation: whatever an actor may legally meet, it handles.
        """
        if error is not None:
            self.world.scheduler.violate(f"{self.name} ended with\n{describe_error(error)}")
        return None

    def crashed(self) -> None:  # noqa: B027  # most actors have nothing to forget
        """The process was killed. It will be started again."""

    @property
    def is_done(self) -> bool:
        """Whether the run may end as far as this actor is concerned."""
        return True

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is about to be started."""
        return self.starts_pending > 0 or (self.process is not None and self.process.alive)

    def draw(self, span: Span) -> float:
        return between(self.world.scheduler.random, span)

    def rest(self, host: Host, span: Span) -> None:
        """Pause between two looks for work. Longer when the faults are over: what is left to do takes few looks."""
        host.process.sleep(self.draw(span) * (CALM_REST_FACTOR if self.world.is_calm else 1.0))

    def glance(self, host: Host) -> None:
        """Pause between two looks at the world itself, which cost it nothing but the events of a run."""
        host.process.sleep(max(GLANCE_S_MIN, self.world.weather.calm_at_s / GLANCES))

    def chance(self, probability: float) -> bool:
        return self.world.scheduler.random.random() < probability


class World:
    """One run. Make it, add actors, then `run`."""

    def __init__(
        self,
        seed: int | str,
        weather: Weather,
        trace: Trace | None = None,
        witness: Callable[[Scheduler, ObjectServer, str], QueueWitness] = QueueWitness,
    ) -> None:
        self.scheduler = Scheduler(seed, trace)
        self.network = Network(self.scheduler, weather, self._on_crash)
        self.server = ObjectServer(lambda: START_MS + int(self.scheduler.now_s * 1000))
        self.queue = witness(self.scheduler, self.server, MANIFEST_PATH)
        self.actors: list[Actor] = []
        self.goals: list[Callable[[], bool]] = []
        """All must hold before the run may end."""
        self.checks: list[Callable[[], None]] = [self.queue.check_end]
        """What must hold at the end; each says so by `violate`."""
        self._owner: dict[Process, Actor] = {}
        self._over = False

    @property
    def weather(self) -> Weather:
        return self.network.weather

    @property
    def is_calm(self) -> bool:
        return self.network.is_calm

    # Actors

    def add(self, actor: Actor, start_s: float = 0.0) -> None:
        self.actors.append(actor)
        self.start(actor, start_s)

    def start(self, actor: Actor, delay_s: float) -> None:
        """Start another life of it, later; if it is still alive by then, that life goes on instead."""
        actor.starts_pending += 1
        self.scheduler.after(delay_s, lambda: self._start(actor))

    def _start(self, actor: Actor) -> None:
        actor.starts_pending -= 1
        if self._over or (actor.process is not None and actor.process.alive):
            return
        actor.life += 1
        process = Process(self.scheduler, f"{actor.name}.{actor.life}")
        skew_s = self.weather.skew_s
        process.wall_offset_s = self.scheduler.random.uniform(-skew_s, skew_s)
        process.wall_base_s = actor.clock_off_s
        process.is_sheltered = actor.is_sheltered
        actor.process = process
        self._owner[process] = actor
        process.note("starts")
        host = Host(process, StoreClient(self.server, self.network, process), SimulatedClock(process))
        process.thread(lambda: actor.run(host), lambda error: self._ended(actor, process, error))

    def _ended(self, actor: Actor, process: Process, error: Exception | None) -> None:
        process.note("ends" if error is None else f"ends with {type(error).__name__}: {error}")
        self.scheduler.counts[f"{actor.name.rstrip('0123456789')} ended: {type(error).__name__}"] += 1
        process.kill()
        delay_s = actor.ended(error)
        if delay_s is not None:
            self.start(actor, delay_s)

    def _on_crash(self, process: Process) -> None:
        actor = self._owner[process]
        self.scheduler.counts["crashes"] += 1
        actor.crashed()
        self.start(actor, between(self.scheduler.random, self.weather.restart_s))

    # Running

    def run(self, drain_s: float) -> None:
        """Run until the faults are over and all goals are reached. Raises Violation.

        `drain_s` is how much virtual time the actors have for that once the faults are over.
        """
        try:
            self.scheduler.after(self.weather.calm_at_s, self._become_calm)
            reached = self.scheduler.run(
                self._is_finished, time_max_s=self.weather.calm_at_s + drain_s, events_max=EVENTS_MAX
            )
            if not reached:
                raise Violation(f"stuck at {self.scheduler.now_s:.3f} s\n{self._situation()}")
            self._let_requests_arrive()
            for check in self.checks:
                check()
            self.scheduler.raise_violation()
        finally:
            self.scheduler.close()

    def _become_calm(self) -> None:
        self.network.is_calm = True
        self.network.end_ambushes()
        self.scheduler.note("*", "calm: no more faults")

    def _is_finished(self) -> bool:
        return (
            self.network.is_calm
            and self.network.unanswered == 0
            and all(goal() for goal in self.goals)
            and all(actor.is_done for actor in self.actors)
        )

    def _let_requests_arrive(self) -> None:
        """End all processes; what they have sent arrives."""
        self._over = True
        for actor in self.actors:
            if actor.process is not None:
                actor.process.kill()
        self.scheduler.note("*", "everything is done")
        self.scheduler.run(lambda: self.network.in_flight == 0, time_max_s=float("inf"), events_max=EVENTS_MAX)

    def _situation(self) -> str:
        """Who is where, for a run that got stuck."""
        lines = [
            f"  {actor.name}: life {actor.life}, {'up' if actor.is_up else 'down'}, "
            f"{'done' if actor.is_done else 'not done'}"
            for actor in self.actors
        ]
        held = len(self.queue.history) - self.queue.first_sequence
        lines.append(f"  queue: {held} of {len(self.queue.history)} batches left")
        return "\n".join(lines)
