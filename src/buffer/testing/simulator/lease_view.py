"""The ledger of a queue with leases as an outsider reads it: from its JSON, by rules written down a second time.

For the witness, which must not judge the code by the code's own functions: when a lease holds, what is finished, which
entries are owed, how many holes there may come to be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

ENDS_MAX = 10  # of which all choices are tried; beyond that each may make a hole


@dataclass(frozen=True, slots=True)
class Story:
    """What the ledger says of one sequence."""

    count: int = 0
    lease: str | None = None
    until_ms: int = 0
    extra: int = 0
    owed: list[list[int]] | None = None
    state: str = "open"
    ordinal: int = 0
    then_blocked: bool = False
    reason: str = ""

    def holds(self, now_ms: int) -> bool:
        return self.lease is not None and self.state == "open" and self.until_ms > now_ms

    def owes(self, entries: int) -> set[int]:
        """The indices that are not acked, of a batch with so many entries."""
        if self.owed is None:
            return set(range(entries))
        return {index for index in range(entries) if any(first <= index <= last for first, last in self.owed)}


UNTOLD = Story()


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One state of the ledger."""

    epoch: int
    """The workers'."""
    ledger_epoch: int
    app_id: str | None
    """What a loader has bound the queue to."""
    time_ms: int
    through: int
    finished: frozenset[int]
    """Those above `through`."""
    stories: dict[int, Story]
    ordinals: int
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaseView | None:
        """None: there are no leases in it."""
        document = json.loads(data)
        leases = document.get("leases")
        if leases is None:
            return None
        return cls(
            epoch=leases["epoch"],
            ledger_epoch=document["epoch"],
            app_id=(document.get("plan") or {}).get("app_id"),
            time_ms=leases["time_ms"],
            through=leases["finished_through"],
            finished=frozenset(s for first, last in leases["finished"] for s in range(first, last + 1)),
            stories={s: Story(**told) for first, last, told in leases["batches"] for s in range(first, last + 1)},
            ordinals=leases["ordinals"],
            config=leases["config"],
        )

    @property
    def is_taken(self) -> bool:
        """Another kind of reader has come after the workers."""
        return self.ledger_epoch != self.epoch

    def story(self, sequence: int) -> Story:
        return self.stories.get(sequence, UNTOLD)

    def is_finished(self, sequence: int) -> bool:
        return sequence <= self.through or sequence in self.finished

    def all_finished(self) -> set[int]:
        return {*range(self.through + 1), *self.finished}

    def in_flight(self, now_ms: int | None = None) -> set[int]:
        now_ms = self.time_ms if now_ms is None else now_ms
        return {sequence for sequence, story in self.stories.items() if story.holds(now_ms)}

    def parking(self) -> set[int]:
        return {sequence for sequence, story in self.stories.items() if story.state == "parking"}

    def holes(self, also: Iterable[int] = ()) -> int:
        """Runs of finished sequences with something unfinished before them."""
        done = {*self.finished, *also}
        reached = self.through
        while reached + 1 in done:
            reached += 1
        return sum(1 for sequence in done if sequence > reached and sequence - 1 not in done)

    def holes_to_come(self) -> int:
        """The most holes that can be, whichever of those that are leased or parking are finished first."""
        ends = self.in_flight() | {s for s in self.parking() if not self.stories[s].then_blocked}
        if len(ends) > ENDS_MAX:
            return self.holes() + len(ends)
        return max(self.holes(some) for size in range(len(ends) + 1) for some in combinations(sorted(ends), size))
