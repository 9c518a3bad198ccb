"""Sets of whole numbers as sorted runs: `((0, 2), (7, 7))` holds 0, 1, 2 and 7. Pure.

Runs are inclusive at both ends, ascending, and never touch: a set has one form only, so equal sets are equal
values. Used for finished sequences and owed entries of a queue with leases.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]
Runs = tuple[Run, ...]


def runs_of(numbers: Iterable[int]) -> Runs:
    """The set of these numbers, in any order, repeated or not."""
    runs: list[Run] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


def union(one: Runs, other: Runs) -> Runs:
    runs: list[Run] = []
    for first, last in sorted(one + other):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], last))
        else:
            runs.append((first, last))
    return tuple(runs)


def difference(one: Runs, other: Runs) -> Runs:
    """What is in one and not in the other."""
    runs: list[Run] = []
    cuts = iter(other)
    cut = next(cuts, None)
    for first, last in one:
        start = first
        while cut is not None and cut[1] < start:
            cut = next(cuts, None)
        while cut is not None and cut[0] <= last:
            if start < cut[0]:
                runs.append((start, cut[0] - 1))
            start = cut[1] + 1
            if cut[1] > last:
                break  # it may cut the next run, too
            cut = next(cuts, None)
        if start <= last:
            runs.append((start, last))
    return tuple(runs)


def holds(runs: Runs, number: int) -> bool:
    index = bisect_right(runs, number, key=lambda run: run[0])
    return index > 0 and number <= runs[index - 1][1]


def size(runs: Runs) -> int:
    return sum(last - first + 1 for first, last in runs)


def numbers(runs: Runs, *, below: int) -> Iterator[int]:
    """Those of them below a bound: runs come from outside, and a short text may stand for any number of them."""
    for first, last in runs:
        yield from range(first, min(last + 1, below))


def is_canonical(runs: Runs, *, low: int) -> bool:
    """Every run is one, they ascend, none touches the next, and nothing is below `low`."""
    for first, last in runs:
        if not low <= first <= last:
            return False
        low = last + 2
    return True
