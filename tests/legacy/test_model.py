"""The real thing beside a model of it: whatever is called in whatever order, both manifests say what the model says."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffer.errors import ClaimLost
from buffer.legacy.claims import Claims, CollectedBatch
from buffer.legacy.format import ConsumerManifest, encode_consumer_manifest, object_location
from buffer.legacy.manifests import PARKED_MS
from tests.legacy.legacy_support import CONSUMER_PATH, TIMEOUT_MS, LegacyQueue, pair

COLLECTORS = 3
READ_TRIES = 2

which = st.integers(0, COLLECTORS - 1)


@dataclass
class Model:
    """What the two manifests should hold. A claim is (time, claim's number); a batch in hand names the number."""

    pending: list[str] = field(default_factory=list)
    claimed: dict[str, tuple[int, int]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    unreadable: dict[str, int] = field(default_factory=dict)
    """How often each of these may still be tried."""
    claims_made: int = 0

    def choose(self, now_ms: int, believed: set[str]) -> str | None:
        stale = [
            (self.claimed[where][0], index, where)
            for index, where in enumerate(self.pending)
            if where in self.claimed
            and where not in self.done
            and where not in believed
            and self.claimed[where][0] < now_ms - TIMEOUT_MS
        ]
        if stale:
            return min(stale)[2]
        free = [where for where in self.pending if where not in self.claimed and where not in self.done]
        return free[0] if free else None

    def claim(self, where: str, now_ms: int) -> int:
        self.claims_made += 1
        self.claimed[where] = (now_ms, self.claims_made)
        return self.claims_made

    def clean_up(self, threshold: int) -> None:
        if len(self.done) < threshold:
            return
        gone = [where for where in self.done if where != self.pending[-1]]
        self.pending = [where for where in self.pending if where not in gone]
        self.done = [where for where in self.done if where not in gone]


class LegacyMachine(RuleBasedStateMachine):
    @initialize(threshold=st.integers(1, 4))
    def start(self, threshold: int) -> None:
        self.queue = LegacyQueue()
        self.model = Model()
        self.threshold = threshold
        self.texts: dict[str, str] = {}
        self.collectors = [self._new() for _ in range(COLLECTORS)]
        self.in_hand: list[dict[str, tuple[CollectedBatch, int]]] = [{} for _ in range(COLLECTORS)]
        """What each Collector believes to hold, and the number of the claim."""

    def _new(self) -> Claims:
        return self.queue.claims(done_cleanup_threshold=self.threshold, read_tries=READ_TRIES)

    @rule(count=st.integers(1, 3))
    def ingest(self, count: int) -> None:
        texts = [f"{len(self.texts)}.{n}" for n in range(count)]
        for location, text in zip(self.queue.ingest(*texts), texts, strict=True):
            self.texts[location] = text
            self.model.pending.append(location)

    @rule()
    def damage(self) -> None:
        """Somebody appends a batch that nobody can read."""
        (location,) = self.queue.ingest("damaged")
        self.queue.store.put(location, b"[")
        self.model.pending.append(location)
        self.model.unreadable[location] = READ_TRIES

    @rule(seconds=st.sampled_from([0.001, 1.0, 10.0, 30.0, 30.001, 100.0]))
    def wait(self, seconds: float) -> None:
        self.queue.clock.advance(seconds)

    @rule(i=which)
    def next_batch(self, i: int) -> None:
        now_ms = self.queue.clock.now_ms()
        batch = self.collectors[i].next_batch()
        while True:
            where = self.model.choose(now_ms, set(self.in_hand[i]))
            if where is None:
                assert batch is None
                return
            number = self.model.claim(where, now_ms)
            if where not in self.model.unreadable:
                break
            self.model.unreadable[where] -= 1
            if self.model.unreadable[where] == 0:
                self.model.claimed[where] = (PARKED_MS, number)
        assert batch is not None
        assert (batch.location, batch.entries) == (where, [pair(self.texts[where])])
        self.in_hand[i][where] = batch, number

    @precondition(lambda self: any(self.in_hand))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        i, where = data.draw(st.sampled_from([(i, where) for i in range(COLLECTORS) for where in self.in_hand[i]]))
        batch, number = self.in_hand[i].pop(where)
        if self.model.claimed.get(where, (0, 0))[1] == number:
            self.collectors[i].ack(batch)
            del self.model.claimed[where]
            self.model.done.append(where)
            self.model.clean_up(self.threshold)
            return
        before = self.queue.consumer
        with pytest.raises(ClaimLost):
            self.collectors[i].ack(batch)
        assert self.queue.consumer == before

    @rule(i=which)
    def beat(self, i: int) -> None:
        now_ms = self.queue.clock.now_ms()
        lost = self.collectors[i].beat()
        expected = []
        for where, (_, number) in list(self.in_hand[i].items()):
            ms, owner = self.model.claimed.get(where, (0, 0))
            if owner == number:
                self.model.claimed[where] = (min(max(now_ms, ms + 1), ms + TIMEOUT_MS), number)
            else:
                expected.append(where)
                del self.in_hand[i][where]
        assert sorted(lost) == sorted(expected)

    @rule(i=which)
    def die(self, i: int) -> None:
        self.collectors[i] = self._new()
        self.in_hand[i] = {}

    @precondition(lambda self: self.model.choose(self.queue.clock.now_ms(), set()) is not None)
    @rule()
    def claim_as_was_done_then(self) -> None:
        """A Collector of that time claims and is never heard of again."""
        now_ms = self.queue.clock.now_ms()
        where = self.model.choose(now_ms, set())
        assert where is not None
        self.model.claim(where, now_ms)
        consumer = self.queue.consumer if CONSUMER_PATH in self.queue.objects() else ConsumerManifest()
        claimed = {where: now_ms, **{other: ms for other, ms in consumer.claimed.items() if other != where}}
        self.queue.store.put(CONSUMER_PATH, encode_consumer_manifest(ConsumerManifest(claimed, consumer.done)))

    @invariant()
    def should_hold_what_the_model_says(self) -> None:
        if not hasattr(self, "queue") or CONSUMER_PATH not in self.queue.objects():
            return
        consumer = self.queue.consumer
        assert self.queue.pending == self.model.pending
        assert dict(consumer.claimed) == {where: ms for where, (ms, _) in self.model.claimed.items()}
        assert list(consumer.done) == self.model.done
        named = {object_location(where) for where in self.model.pending}
        assert {where for where in self.queue.objects() if "manifest" not in where} == named

    def teardown(self) -> None:
        """Everything that is owed can still be collected, and what nobody can read is parked."""
        if not hasattr(self, "queue"):
            return
        owed = {where for where in self.model.pending if where not in {*self.model.done, *self.model.unreadable}}
        last = self._new()
        collected = set()
        for _ in range(READ_TRIES + 1):
            self.queue.clock.advance(1000.0)
            while (batch := last.next_batch()) is not None:
                assert batch.location not in collected
                collected.add(batch.location)
                last.ack(batch)
        assert collected == owed
        assert set(last.parked()) == set(self.model.unreadable)


LegacyMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestModel = LegacyMachine.TestCase
