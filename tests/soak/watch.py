"""What long-lived processes use, sample by sample, and whether it grows. `judge` decides purely."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

MEMORY_GROWTH_MAX = 0.10
HANDLES_SLACK = 4  # a connection that is being replaced
THREADS_SLACK = 2
PROCESSES_SLACK = 1
MIB = 1 << 20
HEAP_UNIT = "MiB heap"
JUDGED_FROM_S = 300.0  # caches and compilers need minutes until they are full: before that growth says nothing


@dataclass
class Series:
    """One measure of one process: (seconds since the start, value)."""

    name: str
    unit: str
    samples: list[tuple[float, float]] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        self.samples.append((at_s, value))

    def early(self, until_s: float) -> list[float]:
        """The second half of the first third: after the start-up."""
        return [value for at_s, value in self.samples if until_s / 6 <= at_s <= until_s / 3]

    def late(self, until_s: float) -> list[float]:
        """The last sixth."""
        return [value for at_s, value in self.samples if at_s >= until_s * 5 / 6]


@dataclass(frozen=True)
class Growth:
    name: str
    unit: str
    early: float
    late: float
    leak: str | None
    """What is wrong; None if nothing is."""

    def __str__(self) -> str:
        share = f"{(self.late / self.early - 1) * 100:+.1f} %" if self.early else ""
        return f"{self.name:<34}{self.early:>9.1f}{self.late:>9.1f} {self.unit:<10}{share:>9}  {self.leak or ''}"


def judge(series: Series, until_s: float) -> Growth | None:
    """Memory: medians within 10 %; of a heap, which is never all garbage or none, the least that was in use.
    Counts: they wander, so a leak is when the late never get down to the early."""
    early, late = series.early(until_s), series.late(until_s)
    if not early or not late:
        return None
    typical = min if series.unit == HEAP_UNIT else median
    growth = Growth(series.name, series.unit, typical(early), typical(late), None)
    slack = {"handles": HANDLES_SLACK, "threads": THREADS_SLACK, "processes": PROCESSES_SLACK}.get(series.unit)
    if slack is None:
        leaks = growth.late > growth.early * (1 + MEMORY_GROWTH_MAX)
        reason = f"grew by more than {MEMORY_GROWTH_MAX:.0%}"
    else:
        leaks = min(late) > max(early) + slack
        reason = f"never under {min(late):.0f} at the end, never over {max(early):.0f} in the first third"
    return Growth(series.name, series.unit, growth.early, growth.late, reason if leaks else None)


class Watch:
    """Samples processes until they end. Each call of `sample` is one look at all of them."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._watched: list[tuple[psutil.Process, Series, Series, Series, Series | None]] = []
        self._others: dict[str, Series] = {}

    def follow(self, name: str, pid: int, *, family: bool = False) -> None:
        """Memory, handles and threads of a process; with `family` also how many it has started that run."""
        self._watched.append(
            (
                psutil.Process(pid),
                Series(f"{name}: memory", "MiB"),
                Series(f"{name}: open handles", "handles"),
                Series(f"{name}: threads", "threads"),
                Series(f"{name}: processes", "processes") if family else None,
            )
        )

    def note(self, name: str, unit: str, value: float) -> None:
        """A measure that somebody else took."""
        self._others.setdefault(name, Series(name, unit)).add(self._seconds(), value)

    def sample(self) -> None:
        for process, memory, handles, threads, family in self._watched:
            try:
                with process.oneshot():
                    at_s = self._seconds()
                    memory.add(at_s, process.memory_info().rss / MIB)
                    handles.add(at_s, process.num_fds())
                    threads.add(at_s, process.num_threads())
                if family is not None:
                    family.add(at_s, len(process.children(recursive=True)))
            except psutil.NoSuchProcess:
                continue  # whoever runs it will notice

    def series(self) -> Iterable[Series]:
        for _, *measures in self._watched:
            yield from (measure for measure in measures if measure is not None)
        yield from self._others.values()

    def save(self, file: Path) -> None:
        """For whoever wants to draw it."""
        lines = [f"{series.name},{at_s:.1f},{value:.1f}" for series in self.series() for at_s, value in series.samples]
        file.write_text("\n".join(["name,seconds,value", *lines]) + "\n")

    def judge(self, until_s: float) -> Sequence[Growth]:
        return [growth for each in self.series() if (growth := judge(each, until_s)) is not None]
