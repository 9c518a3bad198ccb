"""Virtual time and simulated processes. The hub runs one event at a time; whoever waits gives control back to it.

Production code is synchronous, so each thread of a simulated process is a greenlet: it runs until it calls the
store, sleeps or waits, and goes on when the scheduler says so. Nothing here reads the machine's clock or its
randomness, so one seed always gives the same run.

    process   a simulated operating-system process: it dies, stops and wakes up as a whole
    task      one thread of it
    event     something that happens at a moment of virtual time: a request arrives, an answer does, a sleep ends

A killed process just never runs again: no `finally` of it is executed, as after `kill -9`. Its greenlets are
unwound when the run is over, in a world where every call ends at once.
"""

from __future__ import annotations

import heapq
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NoReturn

from buffer.testing.simulator.trace import Trace

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError("the simulator runs each actor as a greenlet: install it with `pip install greenlet`") from error

TRACEBACK_LINES_MAX = 30


class Violation(Exception):
    """Something happened that must never happen. The message says what, and when in virtual time."""


class Scheduler:
    """The hub: virtual time, the events to come, and the one source of chance."""

    def __init__(self, seed: int | str, trace: Trace | None = None) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.events_run = 0
        self.trace = trace
        self.counts: Counter[str] = Counter()
        """What happened how often: tells whether the seeds reach what they are meant to reach."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self._hub = getcurrent()
        self._tasks: list[Task] = []
        self._violation: Violation | None = None
        self._closed = False

    # Events

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` in the hub, this much later. Events of the same moment run in the order of these calls."""
        self._made += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._made, action))

    def run(self, until: Callable[[], bool], *, time_max_s: float, events_max: int) -> bool:
        """Run events until `until()` holds. False if time, events or their allowed number ran out before.

        Raises Violation as soon as something called `violate`.
        """
        for _ in range(events_max):
            if until():
                return True
            if not self._events or self._events[0][0] > time_max_s:
                return False
            self.now_s, _, action = heapq.heappop(self._events)
            self.events_run += 1
            action()
            if self._violation is not None:
                raise self._violation
        return until()

    def raise_violation(self) -> None:
        """Raise what `violate` was told outside of `run`."""
        if self._violation is not None:
            raise self._violation

    def close(self) -> None:
        """Unwind what still waits. Every further wait in it ends at once."""
        self._closed = True
        for task in self._tasks:
            while not task.dead:
                task.throw(GreenletExit)
            task.forget()
        self._tasks.clear()
        self._events.clear()

    # Telling

    def note(self, who: str, what: str) -> None:
        """Put a line into the trace. Callers that must format first ask for `trace` themselves."""
        if self.trace is not None:
            self.trace.add(self.now_s, who, what)

    def violate(self, what: str) -> None:
        """Say that a rule was broken. In a task this never returns; in the hub the run ends after this event."""
        if self._violation is None:
            self._violation = Violation(f"at {self.now_s:.3f} s: {what}")
            self.note("!", what)
        if getcurrent() is not self._hub:
            self.park()

    # Waiting, from inside a task

    def wait(self) -> Any:
        """Give control back until somebody resumes this task; returns what it was resumed with."""
        if self._closed:
            raise GreenletExit
        return self._hub.switch()

    def park(self) -> NoReturn:
        """Never go on."""
        while True:
            self.wait()

    def current(self) -> Task:
        task = getcurrent()
        assert isinstance(task, Task), "only a task may wait: this is the hub"
        return task

    @property
    def closed(self) -> bool:
        return self._closed

    def adopt(self, task: Task) -> None:
        """Remember a task, to unwind it in the end."""
        self._tasks.append(task)
        task.parent = self._hub


class Task(greenlet):
    """One thread of a process."""

    def __init__(self, process: Process, main: Callable[[], None], ended: Callable[[Exception | None], None]) -> None:
        super().__init__()
        self.process = process
        self.turn = 0
        """Counts the waits: an answer that comes after the task went on is for nobody."""
        self._main = main
        self._ended = ended
        process.scheduler.adopt(self)

    def run(self, _resumed_with: Any = None) -> None:
        error: Exception | None = None
        try:
            self._main()
        except Exception as caught:  # noqa: BLE001 - how a thread ended is for its owner to judge
            error = caught
        if not self.process.scheduler.closed:
            self._ended(error)

    def forget(self) -> None:
        """Let go of what it ran: the garbage collector does not see through a greenlet."""
        self._main = self._ended = _nothing

    def wait(self) -> Any:
        return self.process.scheduler.wait()

    def resume(self, turn: int, value: Any = None) -> None:
        """From the hub: go on, unless the process is dead, or stopped, or the task went on already."""
        process = self.process
        if self.turn != turn or not process.alive or self.dead:
            return
        scheduler = process.scheduler
        if process.stopped_until_s > scheduler.now_s:
            scheduler.after(process.stopped_until_s - scheduler.now_s, lambda: self.resume(turn, value))
            return
        self.turn += 1
        self.switch(value)


def _nothing(*_: object) -> None:
    """What a task runs that has been forgotten."""


class Process:
    """A simulated operating-system process."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.stopped_until_s = 0.0
        self.is_sheltered = False
        """No faults for it."""
        self.under_way = 0
        """Requests of it that will still be executed, even after its death."""
        self.cut_off_until_s = 0.0
        """The network carries nothing of it until then."""
        self.wall_offset_s = 0.0
        """How far its wall clock is off for now."""
        self.wall_base_s = 0.0
        """… and how far it always is, on top."""

    def thread(self, main: Callable[[], None], ended: Callable[[Exception | None], None]) -> None:
        """Start a thread; `ended` is told in it how it ended."""
        task = Task(self, main, ended)
        self.scheduler.after(0.0, lambda: task.resume(0))

    def sleep(self, seconds: float) -> None:
        task = self.scheduler.current()
        turn = task.turn
        self.scheduler.after(max(0.0, seconds), lambda: task.resume(turn))
        task.wait()

    def kill(self) -> None:
        """It never runs again. What it has sent may still arrive."""
        self.alive = False

    def stop(self, seconds: float) -> None:
        """None of its threads runs for so long; time goes on meanwhile."""
        self.stopped_until_s = self.scheduler.now_s + seconds

    def note(self, what: str) -> None:
        self.scheduler.note(self.name, what)

    def __repr__(self) -> str:
        return f"Process({self.name})"


class Signal:
    """A condition that threads of one process wait for."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: list[tuple[Task, int]] = []

    def wait(self) -> None:
        task = self._process.scheduler.current()
        self._waiting.append((task, task.turn))
        task.wait()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task, turn in waiting:
            self._process.scheduler.after(0.0, partial(task.resume, turn))


def describe_error(error: BaseException) -> str:
    """An error with the last lines of its traceback, for the message of a violation."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK_LINES_MAX:])
