"""What is to be read: some batches, without those that are set aside. A value: it travels to tasks, and trials cut it.

Used by the loader's protocol for a range and for parts of it, by `fetching` and `rows` for what one task reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from buffer.ledger.entries import Entries, merged, spans
from buffer.model import BatchDescriptor
from buffer_delta.formats.entries import Indices


@dataclass(frozen=True, slots=True)
class Group:
    """Batches, and which of them and of their entries are set aside and why. Nothing of any other task's."""

    descriptors: Sequence[BatchDescriptor]
    quarantined: Mapping[int, str] = field(default_factory=dict)
    """Sequence -> error, of batches that are not fetched."""
    entries: Entries = field(default_factory=dict)
    """Single entries that are not parsed, with the reasons."""
    windows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Sequence -> the only entries of it that are looked at, from and up to: for trials. The others do not exist."""

    def share(self, descriptors: Sequence[BatchDescriptor]) -> Group:
        """These batches of it, with what concerns them."""
        sequences = [d.sequence for d in descriptors]
        return Group(
            descriptors,
            {s: self.quarantined[s] for s in sequences if s in self.quarantined},
            {s: self.entries[s] for s in sequences if s in self.entries},
            {s: self.windows[s] for s in sequences if s in self.windows},
        )

    def without(self, batches: Mapping[int, str], entries: Entries) -> Group:
        """The same with more of it set aside."""
        return replace(self, quarantined={**self.quarantined, **batches}, entries=merged(self.entries, entries))

    def window(self, sequence: int, count: int) -> slice:
        """Which entries of a batch of so many are looked at."""
        first, last = self.windows.get(sequence, (0, count))
        return slice(min(first, count), min(last, count))

    def aside(self, sequence: int, count: int) -> tuple[Indices, list[str]]:
        """The entries of a batch of so many that are set aside, in order, and the reason for each.

        Raises nothing for indices that the batch does not have: it may have been fixed since.
        """
        by_reason = self.entries.get(sequence, {})
        if not by_reason:
            return np.zeros(0, np.int64), []
        runs = sorted((first, last, reason) for reason, text in by_reason.items() for first, last in spans(text))
        window = self.window(sequence, count)
        places = [np.arange(max(first, window.start), min(last + 1, window.stop)) for first, last, _ in runs]
        reasons = [run[2] for run, found in zip(runs, places, strict=True) for _ in found]
        return np.concatenate(places).astype(np.int64), reasons


def in_groups(groups: Sequence[Sequence[BatchDescriptor]], quarantined: Mapping[int, str] | Group) -> list[Group]:
    """Each group with its own share of what is set aside, of batches alone or of all there is."""
    whole = quarantined if isinstance(quarantined, Group) else Group((), quarantined)
    return [whole.share(group) for group in groups]
