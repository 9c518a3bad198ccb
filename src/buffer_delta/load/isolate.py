"""The search for what fails every time: batches and entries of a range that no attempt gets past.

Knows nothing of how a part is tried. The loader's protocol tries one by really preparing and writing it where nobody
sees it; a look at single batches and entries (`probe`) comes first, for it finds many at once.

Rules:
- **Nothing is blamed for what the machines do.** A failure that is known to be theirs ends the search, with nothing
  decided: what it could not look at may be bad, too, and a decision is for good. Any other failure must repeat, alone,
  and between the two a part that is known to be good, or one without any entry, must pass.
- **All or nothing.** What is found is a verdict only if all the rest passes together.
- **A batch that cannot be decoded at all** (its process ends, say) fails without any of its entries, too: it is set
  aside whole.
- **Together.** Entries that pass alone and fail together (two spellings of one column, say) are found by trying longer
  and longer beginnings: the one that ends the longest good beginning is set aside.
- The search is bounded. Where very many fail the cause is hardly each of them: an operator decides (`TooMany`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from buffer.ledger import entries as set_aside
from buffer.ledger.entries import Entries
from buffer.model import BatchDescriptor
from buffer_delta.decode.failures import Failure
from buffer_delta.decode.group import Group

log = logging.getLogger(__name__)

TRIALS_MAX = 2_000  # about as many as 50 entries need in a large range; a trial takes about a second
TRIALS_PER_ENTRY = 50  # more for each entry that is found, as one among a million needs: a few bad ones are all found
TRIALS_GROWTH = 5  # … but no more than so many times the limit: about 250 entries that no look finds, in hours
ROUNDS_MAX = 10  # each finds what the one before had hidden

Kind: TypeAlias = Literal["data", "infra"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a part did not pass: `infra` is known to be the machines' fault, `data` may be the data's."""

    error: str
    kind: Kind


class Lab(Protocol):
    """Where parts of a range are tried."""

    def probe(self, part: Group) -> Sequence[Failure] | Trouble:
        """Read and decode it; what fails, batch by batch and entry by entry. Trouble: the look itself failed."""
        ...

    def attempt(self, part: Group) -> Trouble | None:
        """Prepare and write it where nobody sees it. None: it passed."""
        ...

    def count(self, descriptor: BatchDescriptor) -> int | Trouble:
        """How many entries the batch has."""
        ...


class Undecided(Exception):
    """Nothing can be said now, and nothing must be decided."""


class TooMany(Exception):
    """The search was given up."""


@dataclass(slots=True)
class Verdict:
    """What fails every time, and why."""

    batches: dict[int, str] = field(default_factory=dict)
    entries: dict[int, dict[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.batches or self.entries)

    def lines(self) -> Iterator[str]:
        yield from (f"batch {sequence}: {error}" for sequence, error in sorted(self.batches.items()))
        for sequence, index, reason in set_aside.listed(self.entries):
            yield f"entry {index} of batch {sequence}: {reason}"


class Search:
    """One search through one range."""

    def __init__(self, lab: Lab, whole: Group, *, trials_max: int = TRIALS_MAX) -> None:
        self._lab = lab
        self._whole = whole
        self._trials_left = trials_max
        self._trials_more = (TRIALS_GROWTH - 1) * trials_max
        """That may still be added for what is found."""
        self._counts: dict[int, int] = {}
        self._good = Group(())
        """The last part that passed."""
        self.found = Verdict()

    def run(self) -> Verdict:
        """What fails every time; empty if all of it passes now. Raises Undecided, TooMany."""
        for _ in range(ROUNDS_MAX):
            suspects: list[tuple[Group, Trouble]] = []
            if self._search(self._whole, suspects):
                return self.found
            if self._attempt(self._rest(self._whole)) is None:
                return self.found
            if not suspects:
                self._search_together()
        raise TooMany  # the rest still fails, again and again: not Undecided, which would never end

    # Alone

    def _search(self, part: Group, suspects: list[tuple[Group, Trouble]]) -> bool:
        """Whether the part passes without what is found. What fails alone is a suspect, and blamed if it repeats."""
        trouble = self._try(part)
        if trouble is None:
            return True
        if self._fails_whole(part):
            suspects.append((part, trouble))
            return False
        halves = self._halves(part)
        for half in halves:
            self._search(half, suspects)
        if not halves:
            suspects.append((part, trouble))
            self._blame(part, trouble)  # at once: where the search is given up, the block names what it has found
        return False

    def _try(self, part: Group) -> Trouble | None:
        """The part, without what is found on the way."""
        failures = self._lab.probe(self._rest(part))
        if isinstance(failures, Trouble):
            return self._ours(failures)
        unknown = {f.sequence: f.error for f in failures if f.kind == "infra"}
        if unknown:
            raise Undecided(f"some batches could not be looked at: {unknown}")
        self.found.batches |= {f.sequence: f.error for f in failures if f.index is None}
        self._set_aside([(f.sequence, f.index, f.error) for f in failures if f.index is not None])
        return self._attempt(self._rest(part))

    def _blame(self, part: Group, trouble: Trouble) -> None:
        """One entry, or a batch without any, that has failed once."""
        self._check_the_machines()
        again = self._attempt(self._rest(part))
        if again is None:
            raise Undecided(f"what failed once did not fail again: {trouble.error}")
        (descriptor,) = part.descriptors
        if self._counts.get(descriptor.sequence, 1) == 0:
            self.found.batches[descriptor.sequence] = again.error
        else:
            self._set_aside([(descriptor.sequence, part.window(descriptor.sequence, 1 << 32).start, again.error)])
            more = min(TRIALS_PER_ENTRY, self._trials_more)
            self._trials_left, self._trials_more = self._trials_left + more, self._trials_more - more

    def _fails_whole(self, part: Group) -> bool:
        """Whether a batch fails whatever is tried of it; it is blamed then. Its entries are not to be asked one by one,
        and perhaps cannot even be counted."""
        descriptor, sequence = part.descriptors[0], part.descriptors[0].sequence
        if len(part.descriptors) > 1 or sequence in part.windows or sequence in self.found.batches:
            return False
        counted = self._counted(descriptor)
        if counted == 0:
            return False
        nothing_of_it = Group([descriptor], windows={sequence: (0, 0)})
        trouble = counted if isinstance(counted, Trouble) else self._attempt(nothing_of_it)
        if trouble is None:
            return False
        self._check_the_machines()
        again = self._attempt(self._rest(part) if isinstance(counted, Trouble) else nothing_of_it)
        if again is None:
            raise Undecided(f"what failed once did not fail again: {trouble.error}")
        self.found.batches[sequence] = again.error
        return True

    # Together

    def _search_together(self) -> None:
        """The entry that ends the longest beginning of the range which passes."""
        rest = list(self._rest(self._whole).descriptors)
        if any(self._fails_whole(Group([d])) for d in rest if isinstance(self._counted(d), Trouble)):
            return
        counts = [self._count(d) for d in rest]
        good, bad = 0, sum(counts)
        trouble = None
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self._attempt(self._rest(self._beginning(rest, counts, middle)))
            good, bad = (middle, bad) if found is None else (good, middle)
            trouble = found or trouble
        self._check_the_machines()
        # In this order: what stops to fail in between must not look as if its last entry were to blame.
        before = self._attempt(self._rest(self._beginning(rest, counts, bad - 1)))
        again = self._attempt(self._rest(self._beginning(rest, counts, bad)))
        if again is None or before is not None:
            raise Undecided(f"what failed once did not fail again: {trouble.error if trouble else 'the whole range'}")
        at = self._beginning(rest, counts, bad).descriptors[-1]
        index = bad - 1 - sum(counts[: rest.index(at)])
        self._set_aside([(at.sequence, index, f"together with what comes before it: {again.error}")])

    def _beginning(self, rest: Sequence[BatchDescriptor], counts: Sequence[int], length: int) -> Group:
        taken: list[BatchDescriptor] = []
        windows = {}
        for descriptor, count in zip(rest, counts, strict=True):
            if length <= 0:
                break
            taken.append(descriptor)
            windows[descriptor.sequence] = (0, min(count, length))
            length -= count
        return Group(taken, windows=windows)

    # Parts

    def _rest(self, part: Group) -> Group:
        """The part without all that is set aside or found. What is set aside already is not tried at all."""
        rest = self._whole.without(self.found.batches, self.found.entries)
        kept = [d for d in part.descriptors if d.sequence not in rest.quarantined]
        share = rest.share(kept)
        return Group(kept, {}, share.entries, {s: w for s, w in part.windows.items() if s not in rest.quarantined})

    def _halves(self, part: Group) -> Sequence[Group]:
        batches = list(part.descriptors)
        if len(batches) > 1:
            middle = len(batches) // 2
            return [part.share(batches[:middle]), part.share(batches[middle:])]
        (descriptor,) = batches
        if descriptor.sequence in self.found.batches:
            return []
        window = part.window(descriptor.sequence, self._count(descriptor))
        if window.stop - window.start <= 1:
            return []
        middle = (window.start + window.stop) // 2
        parts = ((window.start, middle), (middle, window.stop))
        return [Group(batches, windows={descriptor.sequence: cut}) for cut in parts]

    def _count(self, descriptor: BatchDescriptor) -> int:
        counted = self._counted(descriptor)
        if isinstance(counted, Trouble):
            raise Undecided(f"the entries of batch {descriptor.sequence} could not be counted: {counted.error}")
        return counted

    def _counted(self, descriptor: BatchDescriptor) -> int | Trouble:
        if descriptor.sequence in self._counts:
            return self._counts[descriptor.sequence]
        counted = self._lab.count(descriptor)
        if isinstance(counted, Trouble):
            return self._ours(counted)
        self._counts[descriptor.sequence] = counted
        return counted

    # Trying

    def _check_the_machines(self) -> None:
        trouble = self._attempt(self._good)
        if trouble is not None:
            what = "what passed before" if self._good.descriptors else "even a part without any entry"
            raise Undecided(f"{what} fails: {trouble.error}")

    def _attempt(self, part: Group) -> Trouble | None:
        if self._trials_left <= 0:
            raise TooMany
        self._trials_left -= 1
        trouble = self._lab.attempt(part)
        if trouble is not None:
            return self._ours(trouble)
        if part.descriptors:
            self._good = part
        return None

    def _ours(self, trouble: Trouble) -> Trouble:
        if trouble.kind == "infra":
            raise Undecided(trouble.error)
        return trouble

    def _set_aside(self, found: Sequence[tuple[int, int, str]]) -> None:
        known: Entries = self.found.entries
        self.found.entries = set_aside.merged(known, set_aside.of(found))
