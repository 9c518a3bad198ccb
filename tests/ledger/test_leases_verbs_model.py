"""The same random lives with every other verb: all settings change, other readers come and go, parts are acked along
with a consume, batches are refused, and whoever looks is told what the model knows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from buffer.errors import InvalidConfig, InvalidHandle, QueueBound
from buffer.leases.values import peeked, stats_of
from buffer.ledger import lease_rules as rules
from buffer.ledger import parking
from buffer.ledger.from_workers import all_finished, check_free, finished_runs, is_left
from buffer.ledger.lease_rules import Ack, Grant, Nack
from buffer.ledger.lease_steps import Stamp
from buffer.ledger.lease_steps import phase as phase_of
from buffer.ledger.leases import Leases, Phase
from buffer.ledger.ranges import holds
from tests.ledger.test_leases_model import CONFIGS, ENTRIES, LeaseMachine, Story, fates, live, picks, workers

parts = st.one_of(st.none(), st.sets(st.integers(0, ENTRIES - 1), max_size=ENTRIES))


class VerbsMachine(LeaseMachine):
    """Every verb, by every fate."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1

    def land(self, who: int, fate: str, by: Stamp, after: Leases) -> bool:
        """Whether the write stands; its receipt says so, whether anybody was told or not."""
        if fate == "request lost":
            assert not self.section().has_receipt(by.worker, by.number)
            return False
        self.put(after)
        assert self.section().has_receipt(self.team[who].name, by.number)
        self.now_ms = self.tick(by)
        return True

    # Acks of parts, beside a consume

    @rule(who=workers, size=st.integers(0, 3), fate=fates, pick=picks, some=st.lists(parts, min_size=1, max_size=3))
    def consume_with_parts(self, who: int, size: int, fate: str, pick: int, some: list[set[int] | None]) -> None:
        worker = self.team[who]
        chosen = self.choose(worker, len(some), pick)
        if not chosen:
            return
        by = self.stamp(worker)
        now = self.tick(by)
        valid = all(self.holds(handle, now) for handle in chosen)
        asked = list(zip(chosen, some, strict=False))
        acks = [Ack(handle, None if part is None else tuple(part), ENTRIES) for handle, part in asked]
        before = self.section()
        try:
            after, grant = rules.consume(before, by, self.queue, size, acks)
        except InvalidHandle:
            assert not valid
            return
        assert valid
        if after is before:  # no entry was acked and nothing is to be had: nothing is sent, so no reply can be lost
            assert all(part is not None and not part for _, part in asked)
            assert not grant.deliveries
            return
        landed = fate != "request lost"
        if landed:
            self.put(after)
            for handle, part in asked:
                story = self.stories[handle.sequence]
                done = set(story.owed) if part is None else story.owed & part
                self.acked.setdefault(handle.sequence, set()).update(done)
                story.owed -= done
                if not story.owed:
                    story.state = "finished"
            self.now_ms = now
            self.learn_judgement(after, grant, now)
            self.check_choice(grant, now, size)
            self.learn_grant(grant, by, now)
        if fate == "told":
            self.remember(worker, grant, by.lease_id)
        else:
            worker.sent.append((by.number, landed, grant, by.lease_id))

    # What a worker's own settings refuse

    @rule(who=workers, fate=fates, pick=picks, delay_ms=st.integers(0, 40))
    def refuse(self, who: int, fate: str, pick: int, delay_ms: int) -> None:
        """A failed delivery; used up, it is blocked at once, whatever the strategy."""
        handles = self.choose(self.team[who], 2, pick)

        def learn(now: int) -> None:
            self.give_back(handles, now + delay_ms, 0)
            for handle in handles:
                if self.is_used_up(handle.sequence):
                    story = self.stories[handle.sequence]
                    story.state, story.until_ms = "blocked", 0

        nacks = [Nack(handle, delay_ms, "too large") for handle in handles]
        self.with_handles(who, fate, handles, lambda section, by: rules.refuse(section, by, nacks), learn)

    # Settings

    @rule(
        who=workers,
        fate=fates,
        values=st.fixed_dictionaries(
            {},
            optional={
                "visibility_timeout_ms": st.sampled_from([1, 20, 50, 200]),
                "max_delivery_attempts": st.integers(1, 4),
                "dlq_strategy": st.sampled_from(["block", "skip", "block_and_dlq"]),
                "dlq": st.sampled_from([None, "dead/manifest", "graves/manifest"]),
                "max_ack_holes": st.integers(1, 4),
                "max_in_flight": st.integers(1, 5),
                "ordering_required": st.booleans(),
            },
        ),
    )
    def configure_anything(self, who: int, fate: str, values: dict[str, object]) -> None:
        section = self.section()
        try:
            config = section.config.replace(**values)
        except InvalidConfig:
            return  # they contradict each other
        by = self.stamp(self.team[who])
        is_parking = any(story.state == "parking" for story in self.stories.values())
        try:
            after = rules.configure(section, by, config)
        except InvalidConfig:
            assert is_parking
            assert config.dlq != section.config.dlq
            return
        assert not is_parking or config.dlq == section.config.dlq
        if not self.land(who, fate, by, after):
            return
        kept = self.section()
        assert (kept.batches, kept.finished, kept.ordinals) == (section.batches, section.finished, section.ordinals)
        self.holes_before = self.worst(self.now_ms, [])
        self.live_before = sum(story.is_live(self.now_ms) for story in self.stories.values())

    def learn_judgement(self, after: Leases, grant: Grant, now: int) -> None:
        """What was copied under another strategy and is used up again is finished by its copy."""
        for sequence, story in self.stories.items():
            if story.state == "open" and story.copied and phase_of(after, sequence, now) is Phase.FINISHED:
                assert after.config.dlq_strategy == "skip"
                assert story.is_free(now)
                assert self.is_used_up(sequence)
                story.owed, story.state = set(), "finished"
        super().learn_judgement(after, grant, now)

    # Operators, and replies that are lost

    @rule(who=workers, fate=fates, pick=picks, attempts=st.integers(1, 3))
    def unblock_blocked(self, who: int, fate: str, pick: int, attempts: int) -> None:
        blocked = [s for s, story in self.stories.items() if story.state == "blocked"]
        if not blocked:
            return
        sequence = blocked[pick % len(blocked)]
        by = self.stamp(self.team[who])
        after = parking.unblock(self.section(), by, sequence, attempts)
        if self.land(who, fate, by, after):
            story = self.stories[sequence]
            short = len(story.leases) + attempts - after.config.max_delivery_attempts
            story.state, story.allowed_more = "open", max(story.allowed_more, short)

    @rule(who=workers, fate=fates, seldom=st.integers(0, 6))
    def purge_counted(self, who: int, fate: str, seldom: int) -> None:
        if seldom:
            return
        by = self.stamp(self.team[who])
        before = self.section()
        gone = [s for s in self.unfinished() if self.stories[s].state != "parking"]
        done = {s for s, story in self.stories.items() if story.state == "finished"}
        try:
            after, count = rules.purge(before, by, self.queue)
        except rules.CapExceeded:
            assert self.count_holes(done.union(gone)) > before.config.max_ack_holes
            return
        assert count == len(gone)
        if after is before or not self.land(who, fate, by, after):
            return
        for sequence in gone:
            story = self.stories[sequence]
            self.purged.setdefault(sequence, set()).update(story.owed)
            story.owed, story.state = set(), "finished"

    # Other readers

    @rule(who=workers, size=st.integers(0, 3))
    def visit(self, who: int, size: int) -> None:
        """A plain consumer takes what comes first, dequeues it, and the workers come back."""
        section = self.section()
        if any(story.state == "parking" for story in self.stories.values()):
            return  # it would bring these to the dead-letter queue first
        done = finished_runs(section)
        for sequence, story in self.stories.items():
            assert holds(done, sequence) == (story.state == "finished"), "it would skip this, or read it again"
        taken = self.unfinished()[:size]
        first = max(self.queue.start, section.finished_through + 1, *(s + 1 for s in taken))
        self.queue = range(min(first, self.queue.stop), self.queue.stop)
        for sequence in taken:
            story = self.stories[sequence]
            self.purged.setdefault(sequence, set()).update(story.owed)
            story.owed, story.state = set(), "finished"
        self.epoch += 1
        by = self.stamp(self.team[who])
        self.put(rules.claimed(section, by, self.epoch, self.queue.start))
        self.now_ms = self.tick(by)
        assert self.section().epoch == self.epoch

    @rule(ahead_ms=st.integers(0, 100))
    def loader_looks(self, ahead_ms: int) -> None:
        """It may come only while nobody has anything in hand; and then it skips just what is finished."""
        section, clock_ms = self.section(), self.time_ms + ahead_ms
        now = max(self.now_ms, clock_ms)
        in_hand = [
            sequence
            for sequence, story in self.stories.items()
            if story.state != "finished" and (story.state == "parking" or story.is_live(now) or _is_in_part(story))
        ]
        try:
            check_free(section, clock_ms)
        except QueueBound:
            assert in_hand
            return
        assert not in_hand
        epoch = section.epoch
        assert is_left(section, ledger_epoch=epoch, queue_epoch=epoch, first_sequence=self.queue.start)
        run = [sequence for sequence, story in self.stories.items() if story.state == "finished"]
        for sequence in run:
            assert all_finished(finished_runs(section), sequence, sequence)

    # Whoever looks

    @invariant()
    def say_what_is(self) -> None:
        if not self.raw:
            return
        section, now = self.section(), max(self.now_ms, self.time_ms)
        phases = {sequence: _phase(story, now) for sequence, story in self.stories.items()}
        for sequence in self.unfinished():
            seen, story = peeked(section, sequence, "somewhere", self.time_ms), self.stories[sequence]
            assert (seen.phase, seen.delivery_count) == (phases[sequence], len(story.leases))
            assert seen.lease_id == (story.leases[-1] if seen.phase is Phase.LEASED else None)
        counts = Counter(phases.values())
        stats = stats_of(section, self.queue.stop, self.time_ms)
        assert stats.depth == len(self.unfinished())
        assert (stats.available, stats.in_flight, stats.delayed, stats.blocked, stats.parking) == tuple(
            counts[phase] for phase in (Phase.AVAILABLE, Phase.LEASED, Phase.DELAYED, Phase.BLOCKED, Phase.PARKING)
        )
        assert stats.blocked_sequences == tuple(s for s, phase in phases.items() if phase is Phase.BLOCKED)
        assert (stats.next_sequence, stats.time_ms) == (self.queue.stop, now)


def _is_in_part(story: Story) -> bool:
    return len(story.owed) < ENTRIES


def _phase(story: Story, now: int) -> Phase:
    if story.state != "open":
        return Phase(story.state)
    if story.is_free(now):
        return Phase.AVAILABLE
    return Phase.LEASED if story.held else Phase.DELAYED


@pytest.mark.parametrize("name", CONFIGS)
def test_should_keep_every_promise_with_every_verb(name: str) -> None:
    live(VerbsMachine, name)
