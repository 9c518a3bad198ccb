"""Random lives of a leases section beside a plain model: workers with clocks of their own, crashes, lost replies.

The section lives as JSON, like in the ledger. The model knows sequences, leases and entries as plain Python objects;
it never asks the section what is right, it only compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.errors import InvalidConfig, InvalidHandle, InvalidInput
from buffer.leases.redrive import Where, redrive
from buffer.leases.values import Peeked, peeked
from buffer.ledger import lease_rules as rules
from buffer.ledger import parking
from buffer.ledger.lease_rules import Ack, Grant, Nack
from buffer.ledger.lease_steps import Stamp, worst_holes
from buffer.ledger.lease_steps import phase as phase_of
from buffer.ledger.leases import Handle, Leases, Phase
from buffer.ledger.parking import ParkOrder
from buffer.ledger.ranges import numbers

ENTRIES = 4  # in every batch
WORKERS = 3

workers = st.integers(0, WORKERS - 1)
fates = st.sampled_from(["told", "told", "told", "reply lost", "request lost"])
picks = st.integers(0, 1_000)


@dataclass
class Story:
    """What the model knows of one sequence."""

    leases: list[str] = field(default_factory=list)
    until_ms: int = 0
    held: bool = False
    allowed_more: int = 0
    owed: set[int] = field(default_factory=lambda: set(range(ENTRIES)))
    state: str = "open"
    copied: bool = False

    def is_live(self, now_ms: int) -> bool:
        return self.state == "open" and self.held and now_ms < self.until_ms

    def is_free(self, now_ms: int) -> bool:
        return self.state == "open" and now_ms >= self.until_ms


@dataclass
class Worker:
    name: str
    skew_ms: int = 0
    number: int = 0
    handles: list[Handle] = field(default_factory=list)
    turns: list[tuple[str, list[ParkOrder]]] = field(default_factory=list)
    """Parking it took on and may still believe to be its own."""
    sent: list[tuple[int, bool, Grant, str]] = field(default_factory=list)
    """Writes without a reply: number, whether it landed, what it would have learned, its lease id."""


class LeaseMachine(RuleBasedStateMachine):
    config = LeaseConfig(visibility_timeout_ms=50, max_delivery_attempts=2)

    def __init__(self) -> None:
        super().__init__()
        self.time_ms = 1_000
        self.queue = range(3, 3)  # the queue had a life before
        self.stories: dict[int, Story] = {}
        self.now_ms = 0  # the model's own idea of the section's time
        self.team = [Worker(f"w{i}") for i in range(WORKERS)]
        self.acked: dict[int, set[int]] = {}
        self.purged: dict[int, set[int]] = {}
        self.dead: dict[int, tuple[int, set[int]]] = {}
        """The dead-letter queue: sequence and entries by ordinal."""
        self.mark = 0
        self.frontier = 2
        self.holes_before = self.live_before = 0
        """When the caps were changed last: what is above a lowered one may stay, and only shrink."""
        self.raw = b""

    @initialize(size=st.integers(0, 8), done=st.sets(st.integers(0, 7)))
    def open(self, size: int, done: set[int]) -> None:
        """The first worker has a few in its hands, and some of those are done: holes, and room for lower caps."""
        self.put(rules.opened(self.config, Stamp("w0", 0, self.time_ms), epoch=1, first_sequence=3))
        self.now_ms = self.time_ms
        self.produce(size)
        if done:
            self.consume(0, size, "told", 0, 0)
            acked = [handle for index, handle in enumerate(self.team[0].handles) if index in done]
            self.with_handles(
                0,
                "told",
                acked,
                lambda section, by: rules.ack(section, by, [Ack(handle) for handle in acked]),
                lambda now: self.finish_acked(acked, now),
            )

    def produce(self, size: int) -> None:
        new = range(self.queue.stop, self.queue.stop + size)
        self.stories.update({sequence: Story() for sequence in new})
        self.queue = range(self.queue.start, new.stop)

    def section(self) -> Leases:
        return Leases.from_json(json.loads(self.raw))

    def put(self, section: Leases) -> None:
        self.raw = json.dumps(section.to_json()).encode()
        assert self.section() == section

    def stamp(self, worker: Worker) -> Stamp:
        worker.number += 1
        return Stamp(worker.name, worker.number, max(0, self.time_ms + worker.skew_ms))

    def tick(self, by: Stamp) -> int:
        return max(self.now_ms, by.clock_ms)

    def unfinished(self) -> list[int]:
        return [s for s, story in self.stories.items() if story.state != "finished"]

    # Time, and those who come and go

    @rule(ms=st.integers(1, 60))
    def pass_time(self, ms: int) -> None:
        self.time_ms += ms

    @rule(who=workers, skew_ms=st.integers(-200, 200))
    def set_clock(self, who: int, skew_ms: int) -> None:
        self.team[who].skew_ms = skew_ms

    @rule(size=st.integers(1, 4))
    def more(self, size: int) -> None:
        if len(self.unfinished()) < 12:
            self.produce(size)

    @rule(who=workers)
    def crash(self, who: int) -> None:
        """All that it knew is gone; another one takes its place."""
        self.team[who] = Worker(f"{self.team[who].name}'")

    @rule()
    def dequeue(self) -> None:
        """The finished prefix leaves the manifest."""
        self.queue = range(max(self.queue.start, self.section().finished_through + 1), self.queue.stop)

    # Consuming, alone or with acks

    @rule(who=workers, size=st.integers(0, 4), fate=fates, acks=st.integers(0, 2), pick=picks)
    def consume(self, who: int, size: int, fate: str, acks: int, pick: int) -> None:
        worker = self.team[who]
        by = self.stamp(worker)
        now = self.tick(by)
        chosen = self.choose(worker, acks, pick)
        before = self.section()
        valid = all(self.holds(handle, now) for handle in chosen)
        try:
            after, grant = rules.consume(before, by, self.queue, size, [Ack(handle) for handle in chosen])
        except InvalidHandle as error:
            lost = {(h.lease_id, h.sequence) for h in chosen if not self.holds(h, now)}
            if set(error.handles) != lost:
                raise AssertionError(f"not held are {lost}") from error
            return
        assert valid
        if after is before:
            assert not chosen
            assert not grant.deliveries
            assert not grant.orders
            assert not grant.blocked
            self.check_nothing_was_there(grant, now, size)
            return
        landed = fate != "request lost"
        if landed:
            self.put(after)
            self.finish_acked(chosen, now)
            self.learn_judgement(after, grant, now)
            self.check_choice(grant, now, size)
            self.learn_grant(grant, by, now)
        if fate == "told":
            self.remember(worker, grant, by.lease_id)
        else:
            worker.sent.append((by.number, landed, grant, by.lease_id))

    @rule(who=workers)
    def read_back(self, who: int) -> None:
        """After a lost reply: the receipt tells whether the last write stands, whatever came after it."""
        worker = self.team[who]
        if not worker.sent:
            return
        number, landed, grant, lease_id = worker.sent.pop()
        worker.sent.clear()
        if number != worker.number:
            return  # it has written since: a worker asks before it writes again
        assert self.section().has_receipt(worker.name, number) == landed
        if landed:
            self.remember(worker, grant, lease_id)

    def remember(self, worker: Worker, grant: Grant, lease_id: str) -> None:
        worker.handles += [delivery.handle for delivery in grant.deliveries]
        if grant.orders:
            worker.turns.append((lease_id, list(grant.orders)))

    def choose(self, worker: Worker, size: int, pick: int) -> list[Handle]:
        held = worker.handles
        return list(dict.fromkeys(held[(pick + i) % len(held)] for i in range(size))) if held else []

    def holds(self, handle: Handle, now: int) -> bool:
        story = self.stories[handle.sequence]
        return story.is_live(now) and story.leases[-1] == handle.lease_id

    def finish_acked(self, handles: list[Handle], now: int) -> None:
        for handle in handles:
            story = self.stories[handle.sequence]
            self.acked.setdefault(handle.sequence, set()).update(story.owed)
            story.owed, story.state = set(), "finished"
        self.now_ms = now

    def learn_judgement(self, after: Leases, grant: Grant, now: int) -> None:
        """Whatever is blocked or parking now had really used up its attempts, and was free."""
        for sequence, story in self.stories.items():
            phase = phase_of(after, sequence, now)
            used_up = len(story.leases) >= after.config.max_delivery_attempts + story.allowed_more
            if phase in (Phase.BLOCKED, Phase.PARKING) and story.state == "open":
                assert story.is_free(now)
                assert used_up
                assert (phase is Phase.BLOCKED) == (sequence in grant.blocked)
                story.state = phase.value
                story.held, story.until_ms = False, 0
            elif story.state == "open" and story.is_free(now) and used_up:
                assert phase is not Phase.LEASED, "used up, and delivered all the same"

    def check_choice(self, grant: Grant, now: int, size: int) -> None:
        """The lowest that are free, each once, within the caps."""
        config = self.section().config
        got = [delivery.handle.sequence for delivery in grant.deliveries]
        free = [s for s in self.unfinished() if self.stories[s].is_free(now) and not self.is_used_up(s)]
        live = [s for s in self.unfinished() if self.stories[s].is_live(now)]
        assert set(got) <= set(free), "delivered while somebody holds it, or finished, or kept back"
        assert len(set(got)) == len(got) <= size
        assert not got or len(live) + len(got) <= config.max_in_flight
        if grant.orders:
            assert not got
        if config.ordering_required:
            assert got in ([], self.unfinished()[:1])
            assert not (got and live)
        elif got and len(got) < min(size, len(free), config.max_in_flight - len(live)):
            assert self.worst(now, got) >= config.max_ack_holes, "fewer than could be"
        assert self.worst(now, got) <= max(config.max_ack_holes, self.worst(now, []))

    def check_nothing_was_there(self, grant: Grant, now: int, size: int) -> None:
        section = self.section()
        unfinished = self.unfinished()
        free = [s for s in unfinished if self.stories[s].is_free(now) and not self.is_used_up(s)]
        live = [s for s in unfinished if self.stories[s].is_live(now)]
        if not size or not free:
            return
        if section.config.ordering_required:
            assert live or free[0] != unfinished[0]
        elif len(live) >= section.config.max_in_flight:
            assert isinstance(grant.stopped, rules.InFlightCapExceeded)
        else:
            assert type(grant.stopped).__name__ == "AckHoleCapExceeded"
            assert free[0] != unfinished[0], "the frontier can always be granted"

    def is_used_up(self, sequence: int) -> bool:
        story = self.stories[sequence]
        return len(story.leases) >= self.section().config.max_delivery_attempts + story.allowed_more

    def worst(self, now: int, also: list[int]) -> int:
        """The most holes that any choice of acks can leave, by trying all of them."""
        ends = [s for s, story in self.stories.items() if story.is_live(now)]
        ends += [s for s, b in self.section().batches.items() if b.state == "parking" and not b.then_blocked]
        ends = sorted({*ends, *also})
        done = {s for s, story in self.stories.items() if story.state == "finished"}
        return max(
            self.count_holes(done.union(extra)) for size in range(len(ends) + 1) for extra in combinations(ends, size)
        )

    def count_holes(self, done: set[int]) -> int:
        return sum(1 for s in done if s - 1 not in done and s != min(self.stories, default=s))

    def learn_grant(self, grant: Grant, by: Stamp, now: int) -> None:
        for delivery in grant.deliveries:
            story = self.stories[delivery.handle.sequence]
            assert delivery.handle.lease_id == by.lease_id
            assert by.lease_id not in story.leases
            story.leases.append(by.lease_id)
            story.held, story.until_ms = True, now + self.section().config.visibility_timeout_ms
            assert delivery.count == len(story.leases)
            assert delivery.until_ms == story.until_ms
            owed = set(range(ENTRIES)) if delivery.owed is None else set(numbers(delivery.owed, below=ENTRIES))
            assert owed == story.owed, "only what is owed is delivered"
            assert owed
        self.now_ms = now

    # The verbs that name handles

    def with_handles(
        self,
        who: int,
        fate: str,
        handles: list[Handle],
        verb: Callable[[Leases, Stamp], Leases],
        learn: Callable[[int], None],
    ) -> None:
        worker = self.team[who]
        by = self.stamp(worker)
        now = self.tick(by)
        valid = all(self.holds(handle, now) for handle in handles)
        try:
            after = verb(self.section(), by)
        except InvalidHandle:
            assert not valid, "an honest handle was refused"
            return
        assert valid, "a handle that does not hold was accepted"
        if fate == "request lost":
            return
        self.put(after)
        assert self.section().has_receipt(worker.name, by.number)
        learn(now)
        self.now_ms = now

    @rule(who=workers, fate=fates, pick=picks, size=st.integers(1, 3))
    def ack(self, who: int, fate: str, pick: int, size: int) -> None:
        handles = self.choose(self.team[who], size, pick)
        self.with_handles(
            who,
            fate,
            handles,
            lambda section, by: rules.ack(section, by, [Ack(handle) for handle in handles]),
            lambda now: self.finish_acked(handles, now),
        )

    @rule(who=workers, fate=fates, pick=picks, entries=st.sets(st.integers(0, ENTRIES - 1), max_size=ENTRIES))
    def ack_part(self, who: int, fate: str, pick: int, entries: set[int]) -> None:
        handles = self.choose(self.team[who], 1, pick)

        def learn(_now: int) -> None:
            for handle in handles:
                story = self.stories[handle.sequence]
                self.acked.setdefault(handle.sequence, set()).update(story.owed & entries)
                story.owed -= entries
                if not story.owed:
                    story.state = "finished"

        acks = [Ack(handle, tuple(entries), ENTRIES) for handle in handles]
        self.with_handles(who, fate, handles, lambda section, by: rules.ack(section, by, acks), learn)

    @rule(who=workers, fate=fates, pick=picks, size=st.integers(1, 3), delay_ms=st.integers(0, 40))
    def nack(self, who: int, fate: str, pick: int, size: int, delay_ms: int) -> None:
        handles = self.choose(self.team[who], size, pick)
        self.with_handles(
            who,
            fate,
            handles,
            lambda section, by: rules.nack(section, by, [Nack(handle, delay_ms, "bad") for handle in handles]),
            lambda now: self.give_back(handles, now + delay_ms, 0),
        )

    @rule(who=workers, fate=fates, pick=picks, delay_ms=st.integers(0, 40))
    def snooze(self, who: int, fate: str, pick: int, delay_ms: int) -> None:
        handles = self.choose(self.team[who], 1, pick)
        self.with_handles(
            who,
            fate,
            handles,
            lambda section, by: rules.snooze(section, by, handles, delay_ms),
            lambda now: self.give_back(handles, now + delay_ms, 1),
        )

    def give_back(self, handles: list[Handle], until_ms: int, allowed_more: int) -> None:
        for handle in handles:
            story = self.stories[handle.sequence]
            story.held, story.until_ms = False, until_ms
            story.allowed_more += allowed_more

    @rule(who=workers, fate=fates, pick=picks, additional_ms=st.integers(0, 100))
    def extend(self, who: int, fate: str, pick: int, additional_ms: int) -> None:
        handles = self.choose(self.team[who], 2, pick)

        def learn(now: int) -> None:
            for handle in handles:
                story = self.stories[handle.sequence]
                story.until_ms = max(story.until_ms, now + additional_ms)

        self.with_handles(
            who, fate, handles, lambda section, by: rules.extend(section, by, handles, additional_ms), learn
        )

    # Keeping back, parking, giving up

    @rule(who=workers, pick=picks, attempts=st.integers(1, 2))
    def unblock(self, who: int, pick: int, attempts: int) -> None:
        unfinished = self.unfinished()
        if not unfinished:
            return
        sequence = unfinished[pick % len(unfinished)]
        story = self.stories[sequence]
        by = self.stamp(self.team[who])
        try:
            after = parking.unblock(self.section(), by, sequence, attempts)
        except InvalidInput:
            assert story.state != "blocked"
            return
        assert story.state == "blocked"
        self.put(after)
        story.state = "open"
        short = len(story.leases) + attempts - after.config.max_delivery_attempts
        story.allowed_more = max(story.allowed_more, short)
        self.now_ms = self.tick(by)

    @rule(who=workers, pick=picks)
    def park(self, who: int, pick: int) -> None:
        unfinished = self.unfinished()
        if not unfinished:
            return
        sequence = unfinished[pick % len(unfinished)]
        story = self.stories[sequence]
        by = self.stamp(self.team[who])
        now = self.tick(by)
        try:
            after, orders = parking.park(self.section(), by, self.queue, sequence)
        except InvalidConfig:
            assert self.section().config.dlq is None
            return
        except InvalidInput:
            assert story.is_live(now)
            return
        except rules.CapExceeded:
            assert self.worst(now, [sequence]) > self.section().config.max_ack_holes
            return
        self.learn_parking(who, by, sequence, after, orders)

    def learn_parking(self, who: int, by: Stamp, sequence: int, after: Leases, orders: tuple[ParkOrder, ...]) -> None:
        story, now = self.stories[sequence], self.tick(by)
        assert not story.is_live(now)
        self.put(after)
        if story.copied and story.state != "parking":
            story.owed, story.state = set(), "finished"
        else:
            story.state, story.held = "parking", False
        self.now_ms = now
        self.remember(self.team[who], Grant(orders=orders), by.lease_id)

    @rule(who=workers, pick=picks, stop=st.booleans())
    def copy(self, who: int, pick: int, stop: bool) -> None:
        """One more of its orders goes into the dead-letter queue, under its mark; a zombie does the same."""
        worker = self.team[who]
        if not worker.turns:
            return
        lease_id, orders = worker.turns[pick % len(worker.turns)]
        done = []
        for order in orders:
            if order.ordinal > self.mark:
                assert order.ordinal == self.mark + 1, "a mark overtook another: that one would be lost"
                owed = set(range(ENTRIES)) if order.owed is None else set(numbers(order.owed, below=ENTRIES))
                assert owed == self.stories[order.sequence].owed
                self.dead[order.ordinal] = (order.sequence, owed)
                self.mark = order.ordinal
            assert self.dead[order.ordinal][0] == order.sequence, "a conflict means that it is there"
            done.append(order)
            if stop:
                return  # dies, or sleeps, before it says so
        by = self.stamp(worker)
        self.put(parking.finish_parking(self.section(), by, lease_id, done))
        self.now_ms = self.tick(by)
        for order in done:
            self.learn_parked(order)

    def learn_parked(self, order: ParkOrder) -> None:
        story = self.stories[order.sequence]
        story.copied = True
        if story.state != "parking":
            return
        batch = self.section().batches.get(order.sequence)
        assert batch is None or batch.state == "blocked"
        story.state = "blocked" if batch else "finished"
        if not batch:
            story.owed = set()

    @rule(who=workers)
    def resume(self, who: int) -> None:
        by = self.stamp(self.team[who])
        after, orders = parking.resume_parking(self.section(), by)
        if orders:
            self.put(after)
            self.now_ms = self.tick(by)
            self.remember(self.team[who], Grant(orders=orders), by.lease_id)

    @rule(who=workers, size=st.integers(1, 3))
    def redrive(self, who: int, size: int) -> None:
        """The queue is the dead-letter queue of another one, and its oldest batches go home."""
        section = self.section()
        if section.config.dlq is None:
            return
        waiting = len(self.unfinished())
        letters = Letters(self, who)
        try:
            moved = redrive(letters, section.config.dlq, None, size)
        except rules.CapExceeded:
            return  # `park` says when that may be
        assert moved <= size
        assert len(self.unfinished()) <= waiting - moved
        assert moved == size or not [b for b in letters.peek(100) if b.phase not in (Phase.LEASED, Phase.DELAYED)]

    @rule(
        who=workers,
        in_flight=st.integers(1, 4),
        holes=st.integers(1, 3),
        attempts=st.integers(1, 3),
    )
    def configure(self, who: int, in_flight: int, holes: int, attempts: int) -> None:
        """Caps are lowered below what is there, or raised."""
        section = self.section()
        by = self.stamp(self.team[who])
        config = section.config.replace(max_in_flight=in_flight, max_ack_holes=holes, max_delivery_attempts=attempts)
        self.put(rules.configure(section, by, config))
        self.now_ms = self.tick(by)
        self.holes_before = self.worst(self.now_ms, [])
        self.live_before = sum(story.is_live(self.now_ms) for story in self.stories.values())

    @rule(who=workers, sure=st.integers(0, 9))
    def purge(self, who: int, sure: int) -> None:
        if sure:
            return  # seldom
        by = self.stamp(self.team[who])
        try:
            after, _ = rules.purge(self.section(), by, self.queue)
        except rules.CapExceeded:
            return
        self.put(after)
        for sequence in self.unfinished():
            story = self.stories[sequence]
            if story.state != "parking":
                self.purged.setdefault(sequence, set()).update(story.owed)
                story.owed, story.state = set(), "finished"
        self.now_ms = max(self.now_ms, after.time_ms)

    # What always holds

    @invariant()
    def keep_every_promise(self) -> None:
        if not self.raw:
            return
        section = self.section()
        assert section.time_ms == self.now_ms, "time runs forward, and is stored with every write"
        assert section.finished_through >= self.frontier, "the frontier never goes back"
        self.frontier = section.finished_through
        live = 0
        for sequence, story in self.stories.items():
            phase = phase_of(section, sequence, self.now_ms)
            assert (phase is Phase.FINISHED) == (story.state == "finished")
            if story.state == "finished":
                continue
            batch = section.batches.get(sequence)
            live += story.is_live(self.now_ms)
            if batch is None:
                assert not story.leases
                continue
            assert batch.count == len(story.leases)
            assert batch.is_leased(self.now_ms) == story.is_live(self.now_ms)
            assert not story.is_live(self.now_ms) or batch.until_ms == story.until_ms
            owed = set(range(ENTRIES)) if batch.owed is None else set(numbers(batch.owed, below=ENTRIES))
            assert owed == story.owed
        assert worst_holes(section, self.now_ms) <= max(section.config.max_ack_holes, self.holes_before)
        assert section.holes == self.count_holes({s for s, story in self.stories.items() if story.state == "finished"})
        assert live <= max(section.config.max_in_flight, self.live_before)
        assert worst_holes(section, self.now_ms) == self.worst(self.now_ms, [])
        assert section.depth(self.queue.stop) == len(self.unfinished())

    def teardown(self) -> None:
        """Nothing is lost: drained to the end, each entry was acked, purged or parked, and none twice."""
        if not self.raw:
            return
        self.time_ms = max(self.time_ms, self.now_ms) + 10_000
        worker = Worker("last")
        for _ in range(10 * len(self.stories) + 10):
            if not self.unfinished():
                break
            self.time_ms += 100
            self.drain(worker)
        assert not self.unfinished()
        parked = dict(self.dead.values())
        assert len(parked) == len(self.dead), "twice in the dead-letter queue"
        for sequence in self.stories:
            acked, purged = self.acked.get(sequence, set()), self.purged.get(sequence, set())
            assert not acked & purged
            assert acked | purged | parked.get(sequence, set()) == set(range(ENTRIES))

    def drain(self, worker: Worker) -> None:
        self.team[0] = worker
        for sequence in [s for s in self.unfinished() if self.stories[s].state == "blocked"]:
            self.unblock(0, self.unfinished().index(sequence), 1)
        self.consume(0, 4, "told", 0, 0)
        while worker.turns:
            self.copy(0, 0, stop=False)
            worker.turns.pop(0)
        for handle in worker.handles:
            self.with_handles(
                0,
                "told",
                [handle],
                lambda section, by, handle=handle: rules.ack(section, by, [Ack(handle)]),  # type: ignore[misc]
                lambda now, handle=handle: self.finish_acked([handle], now),  # type: ignore[misc]
            )
        worker.handles.clear()


class Letters:
    """The machine's queue as a redrive sees it. Its own clock: waiting moves the time."""

    config = ConsumerConfig(store="memory://", manifest_path="dead/manifest")

    def __init__(self, machine: LeaseMachine, who: int) -> None:
        self._machine = machine
        self._who = who

    @property
    def clock(self) -> Any:
        return self

    @property
    def settings(self) -> LeaseConfig:
        return self._machine.section().config

    def peek(self, max_batches: int, *, where: Where | None = None) -> list[Peeked]:
        assert where is None, "one queue alone parks here"
        machine = self._machine
        section = machine.section()
        now_ms = section.now_ms(max(0, machine.time_ms + machine.team[self._who].skew_ms))
        return [peeked(section, sequence, "", now_ms) for sequence in machine.unfinished()[:max_batches]]

    def park(self, sequence: int, reason: str, *, unread: bool) -> bool:
        machine, worker = self._machine, self._machine.team[self._who]
        assert not unread, "what one process's settings refuse, another one may read"
        by = machine.stamp(worker)
        try:
            after, orders = parking.park(machine.section(), by, machine.queue, sequence, reason)
        except rules.CapExceeded:
            assert machine.worst(machine.tick(by), [sequence]) > self.settings.max_ack_holes
            raise
        machine.learn_parking(self._who, by, sequence, after, orders)
        if orders:
            machine.copy(self._who, len(worker.turns) - 1, stop=False)
            worker.turns.pop()
        return machine.stories[sequence].state == "finished"

    def monotonic_s(self) -> float:
        return self._machine.time_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._machine.time_ms += max(1, round(seconds * 1000))

    def jitter(self, low: float, high: float) -> float:
        return (low + high) / 2


CONFIGS = {
    "block": {},
    "skip": {"dlq_strategy": "skip", "dlq": "dead/manifest"},
    "block_and_dlq": {"dlq_strategy": "block_and_dlq", "dlq": "dead/manifest"},
    "few in flight": {"dlq_strategy": "skip", "dlq": "dead/manifest", "max_in_flight": 2},
    "few holes": {"dlq_strategy": "skip", "dlq": "dead/manifest", "max_ack_holes": 1},
    "two holes": {"dlq": "dead/manifest", "max_ack_holes": 2},
    "in order": {"ordering_required": True},
    "in order, with dead letters": {"ordering_required": True, "dlq_strategy": "block_and_dlq", "dlq": "dead/manifest"},
}


def live(machine: type[LeaseMachine], name: str) -> None:
    """Random lives of the machine, in a queue with these settings."""
    values = {"visibility_timeout_ms": 50, "max_delivery_attempts": 2, **CONFIGS[name]}
    configured = type("Machine", (machine,), {"config": LeaseConfig.from_dict(values)})
    run_state_machine_as_test(configured, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("name", CONFIGS)
def test_should_keep_every_promise_in_every_life(name: str) -> None:
    live(LeaseMachine, name)
