"""What is wrong with batches and entries: values. The loader's protocol needs none of what reads batches.

Failing entries travel to the driver by batch and reason, and of very many in one batch, or in one range, only their
number does: such a batch is set aside whole. So the driver's memory does not grow with what fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Literal

from buffer.ledger import entries

ENTRIES_PER_BATCH_MAX = 100_000
"""That are set aside one by one. Where more fail, the cause is hardly each of them."""
ENTRIES_MAX = 300_000
"""… of all batches of a range, each of which is a few hundred bytes in the driver."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that could not be read, or an entry that nothing can be made of, and whose fault that is."""

    sequence: int
    location: str
    error: str
    kind: Literal["data", "missing", "infra"]
    index: int | None = None
    """Of the entry; None: the whole batch."""


def too_many(count: int, first: str) -> str:
    return f"{count:,} of its entries cannot be loaded, too many to set aside one by one; the first: {first}"


def whole_batches(counts: Mapping[int, int]) -> set[int]:
    """The batches, by how many entries of each fail, that are set aside whole; always the same for the same counts."""
    whole = {sequence for sequence, count in counts.items() if count > ENTRIES_PER_BATCH_MAX}
    left = sum(count for sequence, count in counts.items() if sequence not in whole)
    for sequence, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if left <= ENTRIES_MAX:
            break
        if sequence not in whole:
            whole.add(sequence)
            left -= count
    return whole


def told(failures: Iterable[Failure]) -> Iterator[bytes]:
    """The failures of batches, one after the other, as few messages. `read` knows them."""
    for _, of_batch in groupby(failures, key=lambda failure: failure.sequence):
        found: list[Failure] = []
        count = 0
        for failure in of_batch:
            if failure.index is None:
                yield json.dumps([asdict(failure), {}, 1]).encode()
                continue
            count += 1
            if count <= ENTRIES_PER_BATCH_MAX:
                found.append(failure)
        if count > ENTRIES_PER_BATCH_MAX:
            yield json.dumps([asdict(replace(found[0], index=None)), {}, count]).encode()
        elif found:
            by_reason: dict[str, list[int]] = {}
            for failure in found:
                by_reason.setdefault(failure.error, []).append(failure.index or 0)
            texts = {reason: entries.to_text(which) for reason, which in by_reason.items()}
            yield json.dumps([asdict(found[0]), texts, count]).encode()


def read(messages: Iterable[bytes]) -> list[Failure]:
    """What was told, by all tasks of a range; with the batches set aside whole of which very many entries fail."""
    parts = [(Failure(**first), texts, int(count)) for first, texts, count in map(json.loads, messages)]
    whole = whole_batches({first.sequence: count for first, _, count in parts if first.index is not None or count > 1})
    found: list[Failure] = []
    for first, texts, count in parts:
        if first.sequence in whole:
            found.append(replace(first, index=None, error=too_many(count, first.error)))
        elif first.index is None:
            found.append(first)
        else:
            reasons = sorted((index, reason) for reason, text in texts.items() for index in entries.indices(text))
            found += [replace(first, index=index, error=reason) for index, reason in reasons]
    return found
