"""Knows what really happened on a queue with leases, and what must never happen. Nothing that is simulated sees it.

It watches each write of the ledger as a step from one state to the next, reads it by itself (`lease_view.py`), and
hears what workers were told:

    leased      only what nobody holds, is not finished, not kept back and not used up; the count is the number of
                leases ever granted
    answered    only under a lease that holds, and that somebody was given; an extension never shortens
    entries     are acked once; what is owed only shrinks; nothing that was acked is delivered again
    judged      only what was delivered as often as it may be, by the settings, `snooze` and `unblock`; and then it goes
                the way of the strategy
    parked      finished only once it stands in the dead-letter queue; with `block_and_dlq` it stays in the queue as
                well, and may be worked on (`letter_witness.py`)
    purged      all that waited, and nothing that is on its way to the dead-letter queue; as many as were told
    configured  the settings, and nothing else; caps that were lowered hold for all that comes after
    taken over  no worker's write lands after another reader's; what workers have finished that reader is not given, and
                what they have not, it is; a loader binds only a queue of which nobody has anything in hand
    always      time, counts and the frontier never go back; and time is never far ahead, whatever the clocks say
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from buffer.leases.time import CLOCK_AHEAD_MAX_MS
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.testing.simulator.clock import START_MS
from buffer.testing.simulator.lease_view import LeaseView, Story
from buffer.testing.simulator.letter_witness import DEAD_PATHS, LetterWitness
from buffer.testing.simulator.scheduler import Process, Scheduler
from buffer.testing.simulator.store import ObjectServer

SKEW_MS = 1_000  # of a loader's clock, which says whether leases have ended


class LeaseWitness(LetterWitness):
    """Ground truth about one queue with leases and its dead-letter queues."""

    def __init__(self, scheduler: Scheduler, server: ObjectServer, manifest_path: str) -> None:
        super().__init__(scheduler, server, manifest_path)
        self._ledger_path = ledger_path(manifest_path)
        self.grants: defaultdict[int, set[str]] = defaultdict(set)
        """The leases that ever covered a sequence, by the ledger."""
        self.acked: defaultdict[int, set[int]] = defaultdict(set)
        self.purged: defaultdict[int, set[int]] = defaultdict(set)
        self._unblocked: Counter[int] = Counter()
        self._snoozed: Counter[int] = Counter()
        """Deliveries that a sequence may have at least, beyond the settings, as far as somebody was told."""
        self._granted_with: dict[tuple[int, str], tuple[int, set[int]]] = {}
        """By sequence and lease: its count, and the entries owed."""
        self._given: dict[tuple[int, str], set[int]] = {}
        """By sequence and lease: the entries that its holder says are done."""
        self._unblocking: dict[tuple[Process, int], int] = {}
        self._configuring: dict[Process, dict[str, Any]] = {}
        self._purges: dict[Process, int] = {}
        """Who purges, and how many sequences that has finished."""
        self._holes_max = 0
        """What may come of leases from before a cap was lowered."""
        self._left: dict[int, set[int]] = {}
        """By the epoch of a reader that took over: what workers had finished."""
        self.may_dequeue.append(self._may_dequeue)

    # The ledger

    def changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        if location == self._ledger_path and after is not None:
            view = LeaseView.from_bytes(after)
            if self.section is not None and view is not None:
                self._step(caller, self.section, view)
            self.section = view
            if view is not None and view.is_taken:
                self._left[view.ledger_epoch] = view.all_finished()
        elif location in DEAD_PATHS and after is not None:
            self._dead_changed(caller, location, Manifest.from_bytes(after))
        else:
            super().changed(caller, location, before, after)

    def _step(self, caller: Process, old: LeaseView, new: LeaseView) -> None:
        if new.time_ms < old.time_ms:
            self._violate(f"{caller.name} turned the queue's time back, from {old.time_ms} to {new.time_ms}")
        true_ms = self._true_ms()
        if new.time_ms > true_ms + CLOCK_AHEAD_MAX_MS:
            self._violate(f"{caller.name} put the queue's time {new.time_ms - true_ms} ms ahead of the store's")
        if new.through < old.through:
            self._violate(f"the frontier went back, from {old.through} to {new.through}")
        for sequence in sorted(old.finished - new.finished):
            if sequence > new.through:
                self._violate(f"{sequence} was finished, and {caller.name} has made it unfinished")
        self._check_right(caller, old, new)
        if new.config != old.config:
            self._configured(caller, old, new)
        ended = new.all_finished() - old.all_finished()
        for sequence in sorted({*old.stories, *new.stories, *ended}):
            self._batch_step(caller, sequence, old, new)
        if caller in self._purges and new.epoch == old.epoch:
            left = [s for s in range(max(ended, default=0)) if not new.is_finished(s) and s not in new.parking()]
            if left:
                self._violate(f"{caller.name} purged {sorted(ended)}, and left {left}")
        self._check_caps(caller, old, new)

    def _true_ms(self) -> int:
        return START_MS + int(self._scheduler.now_s * 1000)

    def _check_right(self, caller: Process, old: LeaseView, new: LeaseView) -> None:
        """Whether this writer may change the workers' part at all."""
        if new.app_id is not None and old.app_id is None:
            self._bound(caller, old)
        is_changed = (new.stories, new.finished, new.through, new.config, new.time_ms) != (
            (old.stories, old.finished, old.through, old.config, old.time_ms)
        )
        if old.app_id is not None and is_changed:
            self._violate(f"{caller.name} changed the leases of a queue that feeds {old.app_id}")
        if not old.is_taken or new.epoch != old.epoch or not is_changed:
            return
        owner = self._owners.get(old.ledger_epoch)
        if owner is not caller:
            self._violate(f"{caller.name} changed the leases of a queue that {owner} has taken over")

    def _bound(self, caller: Process, old: LeaseView) -> None:
        now_ms = max(old.time_ms, self._true_ms() + SKEW_MS)
        in_part = {sequence for sequence, story in old.stories.items() if story.owed is not None}
        for what, which in (
            ("leased", old.in_flight(now_ms)),
            ("being parked", old.parking()),
            ("acked in part", in_part),
        ):
            if which:
                self._violate(f"{caller.name} bound the queue to a loader while {sorted(which)} were {what}")
        self._counts["queues bound to a loader"] += 1

    def _check_caps(self, caller: Process, old: LeaseView, new: LeaseView) -> None:
        in_flight, cap = len(new.in_flight()), new.config["max_in_flight"]
        if in_flight > cap and in_flight > len(old.in_flight(new.time_ms)):
            self._violate(f"{in_flight} batches in flight, and the cap is {cap}")
        if new.config != old.config:
            self._holes_max = new.holes_to_come()
        holes, cap = new.holes(), new.config["max_ack_holes"]
        if holes > max(cap, self._holes_max):
            self._violate(f"{caller.name} made {holes} holes, and the cap is {cap}")

    def _configured(self, caller: Process, old: LeaseView, new: LeaseView) -> None:
        if new.config != self._configuring.get(caller):
            self._violate(f"{caller.name} changed the settings to {new.config}, which it was not told")
        if (new.stories, new.finished, new.through, new.ordinals) != (
            (old.stories, old.finished, old.through, old.ordinals)
        ):
            self._violate(f"{caller.name} changed the settings, and the batches with them: {old} became {new}")
        if old.parking() and new.config["dlq"] != old.config["dlq"]:
            self._violate(f"{caller.name} changed the dead-letter queue while {old.parking()} are on their way there")
        self._counts["settings changed"] += 1

    # One sequence

    def _batch_step(self, caller: Process, sequence: int, old: LeaseView, new: LeaseView) -> None:
        before, after = old.story(sequence), new.stories.get(sequence)
        if old.is_finished(sequence):
            self._violate(f"{sequence} was finished, and {caller.name} has given it a story again")
        if after is None:
            self._finished(caller, sequence, old, new)
            return
        if after.count < before.count:
            self._violate(f"the count of {sequence} went back, from {before.count} to {after.count}")
        if after.lease is not None and after.lease != before.lease:
            self._granted(caller, sequence, before, after, new)
        elif after.lease is not None and after.until_ms < before.until_ms:
            self._violate(f"{caller.name} shortened the lease of {sequence}")
        elif (after.until_ms > before.until_ms or after.owed != before.owed) and after.state == "open":
            self._check_holds(caller, sequence, before, new, "extended, gave back or acked a part of")
        if after.owed != before.owed:
            left = self._owed(sequence, before) - self._owed(sequence, after)
            if self._owed(sequence, after) - self._owed(sequence, before):
                self._violate(f"more is owed of {sequence} than before: {before.owed}, now {after.owed}")
            self._acked(caller, sequence, before, left)
        if before.state == "blocked" and after.state == "open":
            self._opened(caller, sequence, before, new)
        elif after.extra not in (before.extra, before.extra + 1):
            self._violate(f"{caller.name} gave {sequence} {after.extra - before.extra} attempts more")
        if before.state == "open" and after.state != "open" and after.reason != "given up by hand":
            self._judged(sequence, before, after, new)

    def _granted(self, caller: Process, sequence: int, before: Story, after: Story, new: LeaseView) -> None:
        assert after.lease is not None
        if before.holds(new.time_ms):
            self._violate(f"{caller.name} leased {sequence}, which lease {before.lease} holds until {before.until_ms}")
        if before.state != "open":
            self._violate(f"{caller.name} leased {sequence}, which is {before.state}")
        if before.lease is None and before.until_ms > new.time_ms:
            self._violate(f"{caller.name} leased {sequence}, which was to wait until {before.until_ms}")
        self.grants[sequence].add(after.lease)
        owed = self._owed(sequence, before)
        self._granted_with[sequence, after.lease] = (len(self.grants[sequence]), owed)
        if after.count != len(self.grants[sequence]):
            self._violate(f"the count of {sequence} is {after.count}; leases granted: {len(self.grants[sequence])}")
        if before.count >= new.config["max_delivery_attempts"] + before.extra:
            self._violate(f"{caller.name} leased {sequence}, which was delivered as often as it may be")
        if owed & self.acked[sequence]:
            self._violate(f"{caller.name} leased {sequence}, of which {owed & self.acked[sequence]} were acked")
        if not new.config["ordering_required"]:
            return
        others = new.in_flight() - {sequence}
        if sequence != new.through + 1 or others:
            self._violate(f"{sequence} was leased before {new.through + 1} was finished, beside {others}")

    def _check_holds(self, caller: Process, sequence: int, before: Story, new: LeaseView, what: str) -> None:
        if not before.holds(new.time_ms):
            self._violate(f"{caller.name} {what} {sequence} after its lease {before.lease} had run out")

    def _finished(self, caller: Process, sequence: int, old: LeaseView, new: LeaseView) -> None:
        before = old.story(sequence)
        if not new.is_finished(sequence):
            self._violate(f"{caller.name} made the story of {sequence} undone")
        owed = self._owed(sequence, before)
        if new.epoch != old.epoch and sequence < self.first_sequence and sequence in self.taken:
            return  # workers are back, and learn what left the queue meanwhile
        if before.state == "parking":
            if self.parked.get(sequence) != owed:
                self._violate(f"{sequence} was finished as parked, but {owed} of it are not in the dead-letter queue")
            return
        if caller in self._purges:
            self._purges[caller] += 1
            self.purged[sequence] |= owed
            return
        if before.ordinal and not before.holds(new.time_ms):  # given up by hand, after it was copied
            if not owed <= self.parked.get(sequence, set()):
                self._violate(f"{sequence} was given up, but {owed} of it are not in the dead-letter queue")
            return
        self._check_holds(caller, sequence, before, new, "acked")
        self._acked(caller, sequence, before, owed)

    def _opened(self, caller: Process, sequence: int, before: Story, new: LeaseView) -> None:
        attempts = self._unblocking.get((caller, sequence))
        if attempts is None:
            self._violate(f"{caller.name} opened {sequence}, which is blocked, and nobody asked for that")
            return
        granted = before.count + attempts - new.config["max_delivery_attempts"]
        self._unblocked[sequence] = max(self._unblocked[sequence], granted)

    def _judged(self, sequence: int, before: Story, after: Story, new: LeaseView) -> None:
        if before.holds(new.time_ms):
            self._violate(f"{sequence} was judged while lease {before.lease} held it")
        more = max(self._unblocked[sequence], self._snoozed[sequence])
        allowed = new.config["max_delivery_attempts"] + more
        if before.count < allowed:
            self._violate(f"{sequence} was judged after {before.count} deliveries, but it may have {allowed}")
        strategy = new.config["dlq_strategy"]
        is_copied = strategy == "block_and_dlq" and before.ordinal > 0
        goes = ("blocked", False) if strategy == "block" or is_copied else ("parking", strategy != "skip")
        if (after.state, after.then_blocked) != goes:
            self._violate(f"{sequence} was judged by {strategy!r}, and became {after}")

    def _owed(self, sequence: int, story: Story) -> set[int]:
        return story.owes(len(self.history[sequence].records))

    def _acked(self, caller: Process, sequence: int, before: Story, entries: set[int]) -> None:
        given = self._given.get((sequence, before.lease or ""))
        if given is None:
            self._violate(f"{caller.name} acked {entries} of {sequence} under {before.lease}, which nobody was given")
        elif not entries <= given:
            self._violate(f"{caller.name} acked {entries} of {sequence}, but its holder had done only {given}")
        again = self.acked[sequence] & entries
        if again:
            self._violate(f"entries {again} of {sequence} were acked before")
        self.acked[sequence] |= entries

    # The manifest

    def _check_dequeuer(self, caller: Process, epoch: int) -> None:
        if self.section is not None and self.section.epoch == epoch:
            return
        if self._owners.get(epoch) is not caller or epoch not in self._left:
            self._violate(f"{caller.name} dequeued under epoch {epoch}, which the workers do not share")

    def _may_dequeue(self, batch: object) -> str | None:
        sequence = getattr(batch, "sequence", -1)
        is_done = self.section is not None and self.section.is_finished(sequence)
        return None if is_done or sequence in self.taken else "it is not finished"

    # What workers and operators were told, and what they are about to do

    def delivered(self, process: Process, sequence: int, lease_id: str, count: int, indices: Iterable[int]) -> None:
        if lease_id not in self.grants[sequence]:
            self._violate(f"{process.name} was given {sequence} under {lease_id}, which the ledger never granted")
            return
        granted_count, owed = self._granted_with[sequence, lease_id]
        if count != granted_count:
            self._violate(f"{process.name} was told {count} deliveries of {sequence}: {self.grants[sequence]}")
        if set(indices) != owed:
            self._violate(f"{process.name} was given the entries {indices} of {sequence}, which are not those owed")
        self._given[sequence, lease_id] = set()

    def says_done(self, sequence: int, lease_id: str, indices: Iterable[int]) -> None:
        """Its holder is about to ack these."""
        self._given[sequence, lease_id].update(indices)

    def unblocking(self, process: Process, sequence: int, attempts: int) -> None:
        self._unblocking[process, sequence] = attempts

    def snoozed(self, sequence: int) -> None:
        self._snoozed[sequence] += 1

    def configuring(self, process: Process, config: dict[str, Any]) -> None:
        self._configuring[process] = config

    def purging(self, process: Process) -> None:
        """From now on it does nothing else."""
        self._purges[process] = 0

    def said_purged(self, process: Process, count: int) -> None:
        if count != self._purges[process]:
            self._violate(f"{process.name} was told that {count} were purged; it was {self._purges[process]}")
        self._counts["batches purged"] += count

    def was_given(self, process: Process, epoch: int, sequence: int, behind: int) -> None:
        """A reader that took over under this epoch was given a batch; up to `behind` it had those before it."""
        left = self._left.get(epoch)
        if left is None:
            self._violate(f"{process.name} reads under epoch {epoch}, which no worker can find in the ledger")
            return
        if sequence in left:
            self._violate(f"{process.name} was given {sequence}, which workers have finished")
        unfinished = [s for s in range(behind + 1, sequence) if s not in left]
        if unfinished:
            self._violate(f"{process.name} was given {sequence}, but {unfinished} come first")
        state = self.section.story(sequence).state if self.section is not None else "open"
        if state == "parking" and self.section is not None and self.section.ledger_epoch == epoch:
            self._violate(f"{process.name} was given {sequence}, which is on its way to the dead-letter queue")
        self.taken[sequence] = process
        self._counts["batches read after a takeover"] += 1

    # The end

    @property
    def is_worked_off(self) -> bool:
        """Everything is finished, and dequeued."""
        section = self.section
        return section is not None and section.through + 1 == len(self.history) == self.first_sequence

    @property
    def is_taken_off(self) -> bool:
        """A reader that came for good has got to the end; what workers had finished there leaves with the next ack."""
        section, waiting = self.section, range(self.first_sequence, len(self.history))
        return section is not None and all(section.is_finished(sequence) for sequence in waiting)

    def check_worked_off(self) -> None:
        """Each entry was acked, purged or read, or is in the dead-letter queue."""
        for appended in self.history:
            sequence, everything = appended.sequence, set(range(len(appended.records)))
            if sequence in self.taken:
                continue
            acked, purged = self.acked[sequence], self.purged[sequence]
            parked = self.parked.get(sequence, set())
            both = (acked & purged) | (set() if sequence in self.copies else (acked | purged) & parked)
            if acked | purged | parked != everything or both:
                self._violate(f"of {sequence} were acked {acked}, purged {purged}, parked {parked}, of {everything}")
