"""A queue's life beside a plain list, step by step: who acts, what goes wrong, and what must hold after it.

Producers and consumers act through stores that lose requests, lose replies, call a landed write a lost race, or
land it later; others interfere right before or after their conditional writes; anyone may be reopened, leaving
late writes behind. After every step the manifest itself is read, and must be explained by the list:

- a group of batches that was drawn is *maybe* in the queue until the producer says so, draws again, or gives up:
  `AppendOutcomeUnknown` keeps it maybe, `ContentionError` and a second draw promise that it is dead;
- what appears must be a whole group that was maybe; a dead one must never appear, nor one batch under two names;
- what was there stays, in place, until somebody who owned the queue asked to dequeue it;
- no two consumers ever hold the same epoch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from buffer.attempts import AppendGroup
from buffer.errors import AppendOutcomeUnknown, ContentionError, Fenced, ObjectNotFound, StorageError
from buffer.manifest import Manifest
from buffer.queue import QueueConsumer, QueueProducer
from buffer.store import Lost, Store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.queue.queue_support import PATH, Written, append, consumer, named, nothing

ACTORS = 2
TIMEOUT_S = 0.03  # of manual time: a handful of attempts, then giving up


@dataclass
class Group:
    """Batches that went, or may go, into the queue in one write."""

    batches: tuple[int, ...]
    locations: tuple[str, ...]
    state: Literal["maybe", "dead", "landed"] = "maybe"
    at: int = -1


@dataclass
class Model:
    """What the queue must be: a list of locations, of which the first few were dequeued."""

    history: list[str] = field(default_factory=list)
    first: int = 0
    epoch: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    """By the location of their first batch."""
    asked: set[int] = field(default_factory=set)
    """Every `through` that a consumer tried to dequeue."""
    owned: set[int] = field(default_factory=set)
    batches: int = 0

    def draw(self, batches: tuple[int, ...], draw: int) -> Group:
        group = Group(batches, tuple(f"batch-{batch}-name-{draw}" for batch in batches))
        self.groups[group.locations[0]] = group
        return group

    def look(self, store: Store) -> None:
        """Read the manifest past all faults and explain every difference, or fail."""
        try:
            manifest = Manifest.from_bytes(store.get(PATH).data)
        except ObjectNotFound:
            manifest = Manifest.empty()
        assert self.first <= manifest.first_sequence <= manifest.next_sequence
        assert manifest.epoch >= self.epoch
        self.epoch = manifest.epoch
        entries = {entry.sequence: entry.location for entry in manifest}
        while len(self.history) < manifest.next_sequence:
            self._land(entries)
        assert manifest.next_sequence == len(self.history)
        if manifest.first_sequence > self.first:
            assert manifest.first_sequence - 1 in self.asked, "removed what nobody asked to remove"
            self.first = manifest.first_sequence
        assert [entries[s] for s in range(self.first, len(self.history))] == self.history[self.first :]

    def _land(self, entries: dict[int, str]) -> None:
        at = len(self.history)
        group = self.groups.get(entries[at])
        assert group is not None, f"{entries[at]!r} is not the head of a group"
        assert group.state == "maybe", f"{entries[at]!r} was {group.state} and came again"
        found = tuple(entries.get(at + i) for i in range(len(group.locations)))
        assert found == group.locations, "a part of a group landed"
        group.state, group.at = "landed", at
        self.history += group.locations


TROUBLES = ("before", "after", "late", "late soon")
Troubles = list[tuple[str, bool]]
"""What happens to the next conditional writes, and whether it is answered as a lost race."""

INTERFERENCES = ("", "", "append", "claim", "drain")
"""What others may do: before the first conditional write, after it, before the second, …"""


class Life:
    """Producers, consumers, their faulty stores, and the model. A method is one step; `seen` counts the ends."""

    def __init__(self, store: Store, seen: Counter[str]) -> None:
        self.store = store
        self.seen = seen
        self.clock = ManualClock()
        self.model = Model()
        self.faulty = [FaultyStore(self.store) for _ in range(2 * ACTORS)]
        self.left_behind: list[FaultyStore] = []
        self.hooks = [Written(faulty) for faulty in self.faulty]
        self.producers = [self._producer(i) for i in range(ACTORS)]
        self.consumers = [self._consumer(i) for i in range(ACTORS)]

    def _producer(self, actor: int) -> QueueProducer:
        return QueueProducer(self.hooks[actor], PATH, self.clock, timeout_s=TIMEOUT_S)

    def _consumer(self, actor: int) -> QueueConsumer:
        return QueueConsumer(self.hooks[ACTORS + actor], PATH, self.clock, timeout_s=TIMEOUT_S)

    # What goes wrong

    def _prepare(self, slot: int, script: Troubles, interference: list[str]) -> None:
        faulty, hook = self.faulty[slot], self.hooks[slot]
        for kind, as_lost in script:
            answer = Lost if as_lost else None
            for op in ("put_if_absent", "put_if_match"):
                if kind == "before":
                    faulty.add(Fault.before(op, answer))
                elif kind == "after":
                    faulty.add(Fault.after(op, answer))
                elif kind.startswith("late"):
                    faulty.add(Fault.late(op, answer, after_calls=2 if kind == "late soon" else 9))
        steps = iter(interference)
        hook.interfere = hook.then = lambda: self._interfere(next(steps, ""))

    def _calm(self, slot: int) -> None:
        """End the script, but leave late writes under way."""
        faulty, hook = self.faulty[slot], self.hooks[slot]
        faulty._script.clear()
        hook.interfere = hook.then = nothing
        self.model.look(self.store)

    def _interfere(self, what: str) -> None:
        """Another process acts, and nothing goes wrong for it."""
        self.model.look(self.store)
        if what == "append":
            self.model.batches += 1
            group = self.model.draw((self.model.batches,), 0)
            append(self.store, *group.locations)
        elif what in ("claim", "drain"):
            other = consumer(self.store, self.clock)
            manifest = other.claim()
            self._own(other)
            if what == "drain" and len(manifest):
                self.model.asked.add(manifest.next_sequence - 1)
                other.dequeue(manifest.next_sequence - 1)
        self.model.look(self.store)

    def _own(self, owner: QueueConsumer) -> None:
        assert owner.epoch is not None
        assert owner.epoch not in self.model.owned, "two consumers hold the same epoch"
        self.model.owned.add(owner.epoch)

    # What is done

    def append(self, actor: int, size: int, grows: bool, script: Troubles, others: list[str]) -> None:
        batches = tuple(range(self.model.batches + 1, self.model.batches + 1 + size))
        self.model.batches += size + 10  # ten may join the group later
        drawn: list[Group] = []

        def draw() -> AppendGroup:
            nonlocal batches
            self.model.look(self.store)
            if drawn:
                assert drawn[-1].state == "maybe", "drawn again although the group had landed"
                drawn[-1].state = "dead"
                if grows and len(batches) < 10:
                    batches = (*batches, batches[-1] + 1)
            drawn.append(self.model.draw(batches, len(drawn)))
            return AppendGroup(named(*drawn[-1].locations))

        self._prepare(actor, script, others)
        try:
            sequences = self.producers[actor].append(draw)
        except ContentionError:
            self._calm(actor)
            assert drawn[-1].state == "maybe"
            drawn[-1].state = "dead"
            told = drawn[-1].locations
            self.seen["contention"] += 1
        except AppendOutcomeUnknown as error:
            told = error.locations
            self._calm(actor)
            self.seen[f"unknown, {drawn[-1].state}"] += 1
        else:
            self._calm(actor)
            assert drawn[-1].state == "landed"
            assert sequences == range(drawn[-1].at, drawn[-1].at + len(drawn[-1].locations))
            told = drawn[-1].locations
            self.seen["appended" if len(drawn) == 1 else "appended after a dead attempt"] += 1
        assert told == drawn[-1].locations

    def claim(self, actor: int, script: Troubles, others: list[str]) -> None:
        slot = ACTORS + actor
        self._prepare(slot, script, others)
        try:
            manifest = self.consumers[actor].claim()
        except ContentionError:
            self._calm(slot)
            assert self.consumers[actor].epoch is None
            self.seen["claim gave up"] += 1
            return
        self._own(self.consumers[actor])
        self._calm(slot)
        assert manifest.epoch == self.consumers[actor].epoch
        self.seen["claimed"] += 1

    def dequeue(self, actor: int, share: float, claims: bool, script: Troubles, others: list[str]) -> None:
        slot, owner = ACTORS + actor, self.consumers[actor]
        if claims and owner.epoch != self.model.epoch:
            self.claim(actor, [], [])
        through = self.model.first + round(share * (len(self.model.history) - self.model.first)) - 1
        if owner.epoch == self.model.epoch:
            self.model.asked.add(through)
        self._prepare(slot, script, others)
        try:
            left = owner.dequeue(through)
        except Fenced:
            self._calm(slot)
            assert owner.epoch != self.model.epoch
            self.seen["fenced"] += 1
        except ContentionError:
            self._calm(slot)
            self.seen["dequeue gave up"] += 1
        else:
            self._calm(slot)
            assert left.first_sequence > through
            assert self.model.first > through
            self.seen["dequeued"] += 1

    def read(self, actor: int, read_fails: bool) -> None:
        slot, owner = ACTORS + actor, self.consumers[actor]
        if read_fails:
            self.faulty[slot].add(Fault.before("*"))
        try:
            manifest = owner.read()
        except Fenced:
            self._calm(slot)
            assert owner.epoch != self.model.epoch
        except StorageError:
            self._calm(slot)
        else:
            self._calm(slot)
            found = [entry.location for entry in manifest]
            assert found == self.model.history[manifest.first_sequence : manifest.next_sequence]
            for entry in manifest.entries_from(manifest.next_sequence - 2):  # moves the remembered place about
                assert manifest.read(entry.sequence) == entry
            assert owner.epoch == manifest.epoch

    def reopen(self, slot: int) -> None:
        """The process dies and another one starts; what it had sent may still land."""
        self.left_behind.append(self.faulty[slot])
        self.faulty[slot] = FaultyStore(self.store)
        self.hooks[slot] = Written(self.faulty[slot])
        if slot < ACTORS:
            self.producers[slot] = self._producer(slot)
        else:
            self.consumers[slot - ACTORS] = self._consumer(slot - ACTORS)

    def land(self) -> None:
        """Everything that was sent and never answered arrives now."""
        for faulty in (*self.faulty, *self.left_behind):
            faulty.land()
            self.model.look(self.store)
        self.left_behind.clear()

    def keep_every_promise(self) -> None:
        self.model.look(self.store)
        landed = [batch for group in self.model.groups.values() if group.state == "landed" for batch in group.batches]
        assert len(landed) == len(set(landed)), "one batch is in the queue under two names"
        holders = [c.epoch for c in self.consumers if c.epoch == self.model.epoch]
        assert len(holders) <= 1
