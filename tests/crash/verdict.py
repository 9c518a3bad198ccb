"""Nothing lost, nothing twice, nothing out of order: the logs of the producers against what came out at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

SHOWN_MAX = 10


@dataclass
class Verdict:
    """Counts of entries, and every violation in words. Empty `violations` mean: exactly once."""

    producers: int = 0
    durable: int = 0
    found: int = 0
    unknown: int = 0
    """AppendOutcomeUnknown was their end: once or never, both are right."""
    in_flight: int = 0
    """Found, though no log knows what became of them: their producer died first."""
    retried: int = 0
    violations: list[str] = field(default_factory=list)
    text: str = ""
    """The counts in words, where others than these matter."""

    def add(self, violation: str, ids: Sequence[int]) -> None:
        if ids:
            more = f" and {len(ids) - SHOWN_MAX} more" if len(ids) > SHOWN_MAX else ""
            self.violations.append(f"{violation}: {list(ids[:SHOWN_MAX])}{more}")

    def __str__(self) -> str:
        counts = self.text or (
            f"{self.producers} producers, {self.durable:,} entries durable, {self.found:,} found, "
            f"{self.in_flight:,} of them in flight at a kill, {self.unknown:,} of unknown outcome, "
            f"{self.retried:,} retried after a failure"
        )
        return "\n".join([counts, *(f"VIOLATION {text}" for text in self.violations)])


def judge(logs: Iterable[Path], found: Mapping[str, Sequence[int]]) -> Verdict:
    """`found` has the ids of each producer in the order in which they came out; a log's stem is its producer."""
    verdict = Verdict()
    names = set()
    for log in logs:
        names.add(log.stem)
        _judge_producer(verdict, log, found.get(log.stem, ()))
    for name in found.keys() - names:
        verdict.add(f"entries of {name!r}, who never produced", found[name])
    return verdict


def _judge_producer(verdict: Verdict, log: Path, ids: Sequence[int]) -> None:
    states, errors = read_log(log)
    by_state: defaultdict[str, list[int]] = defaultdict(list)
    retried = set()
    for number, seen in states.items():
        by_state[seen[-1]].append(number)
        if len(seen) > 1:
            retried.add(number)
    times = Counter(ids)
    verdict.producers += 1
    verdict.durable += len(by_state["D"])
    verdict.unknown += len(by_state["U"])
    verdict.retried += len(retried)
    verdict.found += len(ids)
    verdict.in_flight += sum(1 for number in times if states.get(number, "R")[-1] == "R")
    name = log.stem
    verdict.violations += [f"{name}: {error}" for error in errors]
    verdict.add(f"{name}: durable and lost", [number for number in by_state["D"] if not times[number]])
    verdict.add(f"{name}: more than once", [number for number, n in times.items() if n > 1])
    verdict.add(f"{name}: said to have surely failed, but there", [n for n in by_state["F"] if times[n]])
    firsts = [number for number in dict.fromkeys(ids) if number not in retried]  # a retried one may come late
    verdict.add(f"{name}: out of order", [later for earlier, later in pairwise(firsts) if later < earlier])


def read_log(log: Path) -> tuple[dict[int, str], list[str]]:
    """What was known of each id, one letter after the other, and the lines about errors that should not be.

    The last line of a killed process may be half written: then nothing was known of its ids.
    """
    states: dict[int, str] = {}
    errors = []
    for line in log.read_text().split("\n")[:-1]:
        what, first, last, *_ = line.split(" ", 3)
        if what == "X":
            errors.append(line)
        for number in range(int(first), int(last) + 1):
            states[number] = states.get(number, "") + what
    return states, errors
