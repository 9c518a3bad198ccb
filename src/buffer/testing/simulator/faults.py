"""What can happen to a request on its way, and to the process that sent it, drawn from the seed.

    ordinary        the request arrives after a while, the answer too; two requests under way may overtake
    slow            it takes much longer. If the caller's patience ends first, the caller learns nothing
    lost request    it never arrives, and the caller learns nothing
    lost reply      it arrives, and the caller learns nothing
    late            the caller learns nothing, and after that, perhaps long after, the request arrives
    ambush          the caller learns nothing, and the request arrives right before the next critical one that the
                    same process sends, or the one after
    retried         the caller's own client sends it twice and reports what the second one was told: a conditional
                    write that landed is reported as a lost race
    refused         the store asks for fewer requests; nothing was done
    outage          for a while nothing that the process sends is answered; some of it arrives, even after that
    crash           the process dies before it sends the request, or right after
    stop            the process stops before it sends the request, or right after, and wakes up later, perhaps by days
    jump            the process's wall clock is set to another time

Faults end at `calm_at_s`. From then on everything must get done.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any, TypeAlias

from greenlet import GreenletExit

from buffer.errors import StorageError
from buffer.testing.simulator.scheduler import Process, Scheduler, Task, describe_error

Answer: TypeAlias = tuple[bool, Any]
"""(True, value to return) or (False, error to raise)."""

Span: TypeAlias = tuple[float, float]

FATES = ("slow", "lost_request", "lost_reply", "late", "ambush", "retried", "refused")
"""What can happen to a request."""
STRIKES = ("outage", "crash_before", "crash_after", "stop_before", "stop_after", "jump")
"""What can happen to the process that sends it."""
OUTAGE_FATES = ("lost_request", "lost_request", "lost_reply", "late", "ambush")
COSTLY = ("crash_before", "crash_after", "outage")  # much of a run is spent on getting over them
CRITICAL_FACTOR = 3.0  # writes that others depend on are where protocols break
CRITICAL_CHANCE_MAX = 0.2


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances per request, and how long things take, in seconds."""

    calm_at_s: float
    slow: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    ambush: float = 0.0
    retried: float = 0.0
    refused: float = 0.0
    outage: float = 0.0
    crash_before: float = 0.0
    crash_after: float = 0.0
    stop_before: float = 0.0
    stop_after: float = 0.0
    jump: float = 0.0
    latency_s: Span = (0.001, 0.05)
    slow_s: Span = (0.05, 10.0)
    late_s: Span = (0.001, 60.0)
    outage_s: Span = (0.5, 60.0)
    stop_s: Span = (0.05, 60.0)
    restart_s: Span = (0.01, 30.0)
    timeout_s: float = 5.0
    """The caller's patience."""
    skew_s: float = 0.0
    """How far any wall clock may be off, in either direction."""

    @classmethod
    def draw(cls, random: Random, *, calm_at_s: float, long_s: float, timeout_s: float, skew_s: float) -> Weather:
        """Some of the faults, each as rare or frequent as the seed says: a few kinds at a time go deeper than all."""
        kinds = FATES + STRIKES
        if random.random() < 0.35:
            chances = {name: random.uniform(0.05, 0.2) for name in random.sample(kinds, 2)}
        else:
            chances = {name: 10 ** random.uniform(-2.3, -0.9) for name in kinds if random.random() < 0.45}
        for name in COSTLY:
            chances[name] = 0.3 * chances.get(name, 0.0)
        return replace(
            cls(calm_at_s),
            **chances,
            latency_s=(0.001, min(random.choice((0.01, 0.1, 1.0)), timeout_s / 4)),
            slow_s=(0.05, long_s),
            late_s=(0.001, long_s * 2),
            outage_s=(timeout_s, long_s * 2),
            stop_s=(0.05, long_s * 2),
            restart_s=(0.01, long_s / 2),
            timeout_s=timeout_s,
            skew_s=skew_s,
        )


def between(random: Random, span: Span) -> float:
    """A number from the span, small ones as likely as large ones (log-uniform)."""
    low, high = span
    return float(low * (high / low) ** random.random())


class Network:
    """Carries requests of processes to whatever executes them."""

    def __init__(self, scheduler: Scheduler, weather: Weather, on_crash: Callable[[Process], None]) -> None:
        self.weather = weather
        self.is_calm = False
        """Faults are over."""
        self.in_flight = 0
        """Requests that will still be executed."""
        self.unanswered = 0
        """Those among them that nobody waits for: they may change things after everybody is done."""
        self._scheduler = scheduler
        self._on_crash = on_crash
        self._ambushes: list[tuple[Process, list[int], Callable[[], None]]] = []
        self._fates = {critical: _table(weather, FATES, critical) for critical in (False, True)}
        self._strikes = {critical: _table(weather, STRIKES, critical) for critical in (False, True)}

    def call(
        self,
        process: Process,
        what: str,
        execute: Callable[[], Any],
        *,
        lost: Callable[[str], Answer],
        refused: Callable[[], Answer] | None = None,
        critical: bool = False,
        tell: Callable[[Any], str] = repr,
    ) -> Any:
        """Send a request and wait. What `execute` returns, or a StorageError it raises, is the answer, unless lost.

        `lost` makes the answer of a caller that learns nothing; without `refused` the request is never refused.
        `tell` is how the trace shows the answer. Critical is what others depend on: it fails more often.
        """
        if self._scheduler.closed:
            raise GreenletExit
        task = self._scheduler.current()
        calm = self.is_calm or process.is_sheltered
        strike = "" if calm else self._draw(STRIKES, self._strikes[critical])
        self._count(strike)
        if strike and not strike.endswith("after"):
            self._strike(task, strike, what)
        fate = "" if calm else self._fate(process, critical)
        if fate == "refused" and refused is None:
            fate = "slow"
        self._count(fate)
        _Request(self, task, what, execute, tell, critical).send(fate, lost, refused)
        if strike.endswith("after"):
            self._strike(task, strike, what)
        ok, value = task.wait()
        if not ok:
            raise value
        return value

    def _count(self, fault: str) -> None:
        if fault:
            self._scheduler.counts[f"fault: {fault}"] += 1

    def _draw(self, names: tuple[str, ...], table: list[float]) -> str:
        index = bisect(table, self._scheduler.random.random())
        return names[index] if index < len(names) else ""

    def _fate(self, process: Process, critical: bool) -> str:
        if process.cut_off_until_s > self._scheduler.now_s:
            return self._scheduler.random.choice(OUTAGE_FATES)
        return self._draw(FATES, self._fates[critical])

    def lay_ambush(self, process: Process, execute: Callable[[], None]) -> None:
        """Keep a request until the process's next critical one arrives, or the one after that."""
        if self.is_calm:
            execute()
            return
        self._ambushes.append((process, [self._scheduler.random.choice((1, 1, 2))], execute))

    def end_ambushes(self) -> None:
        """Let everything arrive that waits for a critical request."""
        ambushes, self._ambushes = self._ambushes, []
        for _, _, execute in ambushes:
            execute()

    def spring_ambushes(self, process: Process) -> None:
        """A critical request of this process arrives: what waits for that comes first.

        What the dead and the stopped have left behind waits for anybody's.
        """
        for ambush in self._ambushes.copy():
            sender = ambush[0]
            if sender is not process and sender.alive and sender.stopped_until_s <= self._scheduler.now_s:
                continue
            ambush[1][0] -= 1
            if ambush[1][0] == 0:
                self._ambushes.remove(ambush)
                ambush[2]()

    def _strike(self, task: Task, fate: str, what: str) -> None:
        """Something happens to the process itself. After a crash this never returns."""
        process, random = task.process, self._scheduler.random
        when, _, moment = fate.partition("_")
        if fate == "outage":
            seconds = between(random, self.weather.outage_s)
            process.cut_off_until_s = self._scheduler.now_s + seconds
            process.note(f"cut off for {seconds:.3f} s")
        elif fate == "jump":
            process.wall_offset_s = random.uniform(-self.weather.skew_s, self.weather.skew_s)
            process.note(f"wall clock set to {process.wall_offset_s:+.1f} s")
        elif when == "crash":
            process.note(f"✝ crash {moment} {what}")
            process.kill()
            self._on_crash(process)
            if moment == "before":
                self._scheduler.park()
        else:
            seconds = min(between(random, self.weather.stop_s), self.weather.calm_at_s - self._scheduler.now_s)
            process.note(f"⏸ stop for {seconds:.3f} s {moment} {what}")
            process.stop(seconds)
            if moment == "before":
                process.sleep(seconds)


def _table(weather: Weather, names: tuple[str, ...], critical: bool) -> list[float]:
    """The chances of these, added up; what is left over is that nothing happens."""
    chances = [getattr(weather, name) for name in names]
    if critical:
        chances = [max(chance, min(CRITICAL_CHANCE_MAX, chance * CRITICAL_FACTOR)) for chance in chances]
    return list(accumulate(chances))


class _Request:
    """One request under way."""

    def __init__(
        self,
        network: Network,
        task: Task,
        what: str,
        execute: Callable[[], Any],
        tell: Callable[[Any], str],
        critical: bool,
    ) -> None:
        self._network = network
        self._scheduler = task.process.scheduler
        self._task = task
        self._turn = task.turn
        self._what = what
        self._execute = execute
        self._tell = tell
        self._critical = critical

    def send(self, fate: str, lost: Callable[[str], Answer], refused: Callable[[], Answer] | None) -> None:
        random, weather, after = self._scheduler.random, self._network.weather, self._scheduler.after
        there = between(random, weather.latency_s)
        back = between(random, weather.latency_s)
        if fate == "refused" and refused is not None:
            answer = refused()
            after(there, lambda: self._answer(answer, "refused"))
            return
        if fate == "slow":
            if random.random() < 0.5:
                there = between(random, weather.slow_s)
            else:
                back = between(random, weather.slow_s)
        patience = weather.timeout_s if fate == "slow" else random.uniform(there, weather.timeout_s)
        if fate == "late":
            self._arrive(patience + between(random, weather.late_s), None, "late")
        elif fate == "ambush":
            self._wait_in_ambush(patience)
        elif fate == "retried":
            self._arrive(between(random, weather.latency_s), None, "first try")
            self._arrive(there, back, "second try")
            return
        elif fate != "lost_request":
            answers = fate != "lost_reply" and there + back <= weather.timeout_s
            self._arrive(there, back if answers else None, "")
            if answers:
                return
        after(patience, lambda: self._answer(lost(fate), fate))

    def _wait_in_ambush(self, delay_s: float) -> None:
        network = self._network
        self._count_under_way(+1, is_answered=False)

        def strike() -> None:
            self._count_under_way(-1, is_answered=False)
            self._run(None, "ambush")

        self._scheduler.after(delay_s, lambda: network.lay_ambush(self._task.process, strike))

    def _arrive(self, delay_s: float, back_s: float | None, remark: str) -> None:
        """Execute the request after a delay, and answer it if `back_s` says how long that takes."""
        network = self._network
        self._count_under_way(+1, is_answered=back_s is not None)

        def arrive() -> None:
            self._count_under_way(-1, is_answered=back_s is not None)
            if self._critical and remark != "late":
                network.spring_ambushes(self._task.process)
            self._run(back_s, remark)

        self._scheduler.after(delay_s, arrive)

    def _count_under_way(self, change: int, *, is_answered: bool) -> None:
        self._task.process.under_way += change
        self._network.in_flight += change
        if not is_answered:
            self._network.unanswered += change

    def _run(self, back_s: float | None, remark: str) -> None:
        answer: Answer
        try:
            answer = (True, self._execute())
        except StorageError as error:
            answer = (False, error)
        except Exception as error:  # noqa: BLE001 - a witness that breaks must not pass for an answer, which may get lost
            self._scheduler.violate(f"{self._what} broke the simulation\n{describe_error(error)}")
            return
        self._trace(answer, f"{remark}, no answer" if back_s is None else remark)
        if back_s is not None:
            self._scheduler.after(back_s, lambda: self._task.resume(self._turn, answer))

    def _answer(self, answer: Answer, why: str) -> None:
        self._trace(answer, f"caller told ({why})")
        self._task.resume(self._turn, answer)

    def _trace(self, answer: Answer, remark: str) -> None:
        if self._scheduler.trace is None:
            return
        ok, value = answer
        text = self._tell(value) if ok else f"{type(value).__name__}: {value}"
        note = f"   ({remark.strip(', ')})" if remark else ""
        self._task.process.note(f"{self._what} → {text[:200]}{note}")
