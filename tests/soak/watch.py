"""What long-lived processes use, sample by sample, and whether it grows. `judge` decides purely."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

MEMORY_GROWTH_MAX = 0.10
HANDLES_SLACK = 2  # a pool that opens one more connection
THREADS_SLACK = 1
THREADS_SLACK_SHARE = 0.10  # a JVM has 300 in pools that come and go; of the 12 of a Python process that is one
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

    def middle(self, until_s: float) -> list[float]:
        """The second third."""
        return [value for at_s, value in self.samples if until_s / 3 <= at_s <= until_s * 2 / 3]

    def late(self, until_s: float) -> list[float]:
        """The last sixth."""
        return [value for at_s, value in self.samples if at_s >= until_s * 5 / 6]


@dataclass(frozen=True)
class Growth:
    name: str
    unit: str
    early: float | None
    late: float | None
    leak: str | None
    """What is wrong; None if nothing is."""

    def __str__(self) -> str:
        early, late = ("-" if value is None else f"{value:.1f}" for value in (self.early, self.late))
        share = f"{(self.late / self.early - 1) * 100:+.1f} %" if self.early and self.late is not None else ""
        return f"{self.name:<34}{early:>9}{late:>9} {self.unit:<10}{share:>9}  {self.leak or ''}"


def judge(series: Series, until_s: float) -> Growth:
    """Memory: medians within 10 %; of a heap, which is never all garbage or none, the least that was in use.
    Counts: they wander upwards from what is needed all the time, so a leak is when that least rises, from the first
    third to the second to the last. Who was not there at both ends was watched in vain: that is wrong, too."""
    early, middle, late = series.early(until_s), series.middle(until_s), series.late(until_s)
    typical = min if series.unit == HEAP_UNIT else median
    first, last = (typical(values) if values else None for values in (early, late))
    leak = None
    if first is None or last is None:
        leak = "watched, but not there at both ends"
    elif series.unit in _COUNTS:
        least, least_late = min(early), min(late)
        rises = least <= min(middle, default=least) <= least_late
        if rises and least_late > least + _slack(series.unit, least):
            leak = f"never under {least_late:.0f} at the end, down to {least:.0f} in the first third"
    elif last > first * (1 + MEMORY_GROWTH_MAX):
        leak = f"grew by more than {MEMORY_GROWTH_MAX:.0%}"
    return Growth(series.name, series.unit, first, last, leak)


_COUNTS = {"handles": HANDLES_SLACK, "threads": THREADS_SLACK, "processes": PROCESSES_SLACK}


def _slack(unit: str, least: float) -> float:
    return max(_COUNTS[unit], THREADS_SLACK_SHARE * least if unit == "threads" else 0)


class _Measures:
    """Memory, handles and threads, of one process or of the largest of several."""

    def __init__(self, name: str) -> None:
        self.memory = Series(f"{name}: memory", "MiB")
        self.handles = Series(f"{name}: open handles", "handles")
        self.threads = Series(f"{name}: threads", "threads")

    def __iter__(self) -> Iterator[Series]:
        return iter((self.memory, self.handles, self.threads))

    def add(self, at_s: float, processes: Iterable[psutil.Process]) -> None:
        """The largest of each; nothing, if nobody is there."""
        looks = [look for process in processes if (look := _look(process)) is not None]
        for series, values in zip(self, zip(*looks, strict=True), strict=False):
            series.add(at_s, max(values))


def _look(process: psutil.Process) -> tuple[float, int, int] | None:
    """None if it is gone, even if nobody has asked yet how it ended: a zombie has memory and handles, 0 of each."""
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return process.memory_info().rss / MIB, process.num_fds(), process.num_threads()
    except psutil.NoSuchProcess:
        return None


@dataclass(frozen=True)
class _Family:
    head: psutil.Process
    besides: Container[int]
    count: Series
    largest: _Measures

    def add(self, at_s: float) -> None:
        try:
            children = self.head.children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.count.add(at_s, len(children))
        self.largest.add(at_s, [child for child in children if child.pid not in self.besides])


class Watch:
    """Samples processes until they end. Each call of `sample` is one look at all of them."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._watched: list[tuple[psutil.Process, _Measures]] = []
        self._families: list[_Family] = []
        self._others: dict[str, Series] = {}

    def follow(self, name: str, pid: int) -> None:
        """Memory, handles and threads of a process."""
        self._watched.append((psutil.Process(pid), _Measures(name)))

    def follow_family(self, name: str, pid: int, *, besides: Container[int] = ()) -> None:
        """How many processes it and they have started that run; and how large the largest of them is, `besides`
        those that are followed by themselves. Not how large all are: Spark ends workers that idle and forks others,
        and a sum comes and goes with them. A worker that lives on and leaks becomes the largest."""
        count = Series(f"{name}: processes", "processes")
        self._families.append(_Family(psutil.Process(pid), besides, count, _Measures(f"{name}, workers")))

    def expect(self, name: str, unit: str) -> None:
        """Somebody else will take this measure: if nobody does, that is wrong."""
        self._others.setdefault(name, Series(name, unit))

    def note(self, name: str, unit: str, value: float) -> None:
        """A measure that somebody else took."""
        self.expect(name, unit)
        self._others[name].add(self._seconds(), value)

    def sample(self) -> None:
        """Whoever is gone is left out: the series ends, and `judge` sees that."""
        for process, measures in self._watched:
            measures.add(self._seconds(), [process])
        for family in self._families:
            family.add(self._seconds())

    def series(self) -> Iterable[Series]:
        for _, measures in self._watched:
            yield from measures
        for family in self._families:
            yield from (family.count, *family.largest)
        yield from self._others.values()

    def save(self, file: Path) -> None:
        """For whoever wants to draw it."""
        lines = [f"{series.name},{at_s:.1f},{value:.1f}" for series in self.series() for at_s, value in series.samples]
        file.write_text("\n".join(["name,seconds,value", *lines]) + "\n")

    def judge(self, until_s: float) -> Sequence[Growth]:
        return [judge(each, until_s) for each in self.series()]
