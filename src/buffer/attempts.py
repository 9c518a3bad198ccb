"""One append to the manifest: what was sent, and what became of it. Pure; `queue.py` sends.

An attempt is (version read, expected sequence E, exact group of locations). When its outcome is not `Won`, `decide`
looks at the newest manifest:

    a location of ours stands at its slot     LANDED       the whole group did: one write carried it
    another location stands there, or the     DEAD         its version can never match again; only now may
    queue ends short of the group, at                      batches join the group or get new names
    another version
    the version is still the one read         PENDING      it may land later: repeat the very same bytes
    all slots were dequeued                   UNDECIDABLE  AppendOutcomeUnknown
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple, Protocol

from buffer.cas import Snapshot
from buffer.manifest import Manifest, NewEntry
from buffer.store.base import Version


class ClientSpan(NamedTuple):
    """The smallest and the largest client_seq of some calls."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class AppendGroup:
    """Batches that go into the queue in one write, in this order."""

    entries: Sequence[NewEntry]
    valid_until_s: float = inf
    """Monotonic time after which no write may name these locations: a collector could have taken them."""
    client_seqs: ClientSpan | None = None
    """Of the calls in it; None without a client id."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One append that was sent, or is about to be."""

    seen: Snapshot
    expected_sequence: int
    locations: tuple[str, ...]
    result: Manifest
    """What stands if this attempt wins."""
    valid_until_s: float = inf
    client_seqs: ClientSpan | None = None

    @property
    def sequences(self) -> range:
        return range(self.expected_sequence, self.expected_sequence + len(self.locations))


class Verdict(Enum):
    LANDED = "landed"
    DEAD = "dead"
    PENDING = "pending"
    UNDECIDABLE = "undecidable"


def decide(attempt: Attempt, version: Version | None, manifest: Manifest) -> Verdict:
    """What became of an attempt, given a manifest read after it was sent."""
    if version == attempt.seen.version:
        return Verdict.PENDING
    slots = attempt.sequences
    if manifest.next_sequence < slots.stop:
        return Verdict.DEAD
    visible = max(slots.start, manifest.first_sequence)
    if visible >= slots.stop:
        return Verdict.UNDECIDABLE
    entry = manifest.read(visible)
    assert entry is not None, "first_sequence <= visible < slots.stop <= next_sequence"
    ours = entry.location == attempt.locations[visible - slots.start]
    return Verdict.LANDED if ours else Verdict.DEAD


class Guard(Protocol):
    """Keeps calls that are in the queue already out of it. For producers with a client id (`clients.py`)."""

    def check(self, manifest: Manifest, group: AppendGroup) -> None:
        """Raises what ends the append, if the group cannot go onto this manifest as it is. Nothing is in flight."""
        ...

    def decide(self, manifest: Manifest, attempt: Attempt) -> Verdict:
        """LANDED or DEAD, for an attempt whose slots have left this manifest. Raises what ends the append."""
        ...

    def won(self, attempt: Attempt) -> None:
        """The attempt is in the queue, right behind what was checked."""
        ...
