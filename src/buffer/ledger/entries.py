"""Single entries of batches that are set aside, and why: small enough for the ledger, whatever the number. Pure.

    {12: {"CHECK positive (id > 0)": "3,7-9"}}     sequence -> reason -> which entries

Many entries share a reason, and bad ones often come in a row. Reasons are cut, and where there are too many different
ones the rest share one; which entries they stand for stays exact. Used by the plan, by the loader's search for what
fails, and on executors, which leave these entries out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeAlias

from buffer.ledger.ranges import runs_of
from buffer.ledger.reasons import plain

Entries: TypeAlias = Mapping[int, Mapping[str, str]]

REASON_MAX = 300  # characters: enough to name a constraint, not enough to repeat a record
REASONS_MAX = 300  # different ones in a plan: with them the ledger stays below 200 kB
OTHER_REASONS = "one of more reasons than the ledger keeps"

INDEX_MAX = (1 << 32) - 1  # a batch's footer counts its records in 32 bits
ENTRIES_MAX = 2_000_000  # set aside in one range: each is a value in memory where they are listed, about 250 MB in all

_SPANS = re.compile(r"\d{1,10}(-\d{1,10})?(,\d{1,10}(-\d{1,10})?)*", re.ASCII)


def to_text(indices: Iterable[int]) -> str:
    """`3,7-9`, for indices in any order."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(indices))


def spans(text: str) -> list[tuple[int, int]]:
    """The first and the last index of each run. Raises ValueError for what `to_text` would not write."""
    if not _SPANS.fullmatch(text):
        raise ValueError("not a list of indices like 3,7-9")
    found = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        found.append((int(first), int(last or first)))
    if any(first > last for first, last in found) or any(one[1] >= other[0] for one, other in pairwise(found)):
        raise ValueError("not in ascending order")
    if found[-1][1] > INDEX_MAX:
        raise ValueError(f"{found[-1][1]:,}, and no batch has an entry above {INDEX_MAX:,}")
    return found


def indices(text: str) -> Iterator[int]:
    for first, last in spans(text):
        yield from range(first, last + 1)


def of(found: Iterable[tuple[int, int, str]]) -> dict[int, dict[str, str]]:
    """From sequence, index and reason of each; of several reasons for one entry the first counts."""
    reasons: dict[tuple[int, int], str] = {}
    for sequence, index, reason in found:
        reasons.setdefault((sequence, index), _cut(reason))
    kept = set(list(dict.fromkeys(reasons.values()))[:REASONS_MAX])
    sorted_out: dict[int, dict[str, list[int]]] = {}
    for (sequence, index), reason in sorted(reasons.items()):
        known = reason if reason in kept else OTHER_REASONS
        sorted_out.setdefault(sequence, {}).setdefault(known, []).append(index)
    return {
        sequence: {reason: to_text(which) for reason, which in by_reason.items()}
        for sequence, by_reason in sorted_out.items()
    }


def listed(entries: Entries) -> Iterator[tuple[int, int, str]]:
    """Sequence, index and reason of each, in order."""
    for sequence, by_reason in sorted(entries.items()):
        found = sorted((index, reason) for reason, text in by_reason.items() for index in indices(text))
        yield from ((sequence, index, reason) for index, reason in found)


def merged(one: Entries, other: Entries) -> dict[int, dict[str, str]]:
    return of([*listed(one), *listed(other)])


def count(entries: Entries) -> int:
    return sum(
        last - first + 1 for reasons in entries.values() for text in reasons.values() for first, last in spans(text)
    )


def _cut(reason: str) -> str:
    line = " ".join(plain(reason).split())
    return line if len(line) <= REASON_MAX else f"{line[: REASON_MAX - 1]}…"
