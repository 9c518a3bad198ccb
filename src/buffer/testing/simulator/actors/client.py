"""A producer with a client id: the real numbers, guard and committer, and what an application does with the answers.

    source   knows its calls and which of them were answered. After a failure it begins at the first that was not,
             and sometimes before that: what was answered must then be recognised
    mark     keeps nothing. It begins where the queue says that its client is
    twin     one of two that use one client id at the same time, which nobody should. It counts its calls on from
             wherever the client is, with gaps, so that it may be ahead of the other one's numbers without knowing of
             them; and it leaves alone what it was not told

Whatever happens, each call of the first two is in the queue once in the end, unless somebody who knows no marks has
emptied it (`MarksLost`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from buffer.config import ProducerConfig
from buffer.errors import (
    AppendOutcomeUnknown,
    BufferQueueError,
    ContentionError,
    IdempotencyConflict,
    MarksLost,
    ProducerStopped,
    StateLost,
    StorageError,
)
from buffer.produce.client_seqs import ClientSeqs
from buffer.produce.durability import Durable, Settled
from buffer.produce.intake import PendingBatch, check_call
from buffer.testing.simulator.actors.committing import Committing
from buffer.testing.simulator.actors.producer import ENTRIES_PER_CALL_MAX
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.scheduler import describe_error
from buffer.testing.simulator.witness import Record
from buffer.testing.simulator.world import Actor, Host, World

HABITS = ("source", "mark", "twin")
REPLAYS_MAX = 2
RESTART_CHANCE = 0.1  # after each call: whoever restarts asks the queue where it is


class _Restart(Exception):
    """The application ends where it is, and is started again."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """One call of this life that has no answer yet."""

    place: int
    client_seq: int
    records: tuple[Record, ...]


class ClientActor(Actor):
    """Produces `keys` records in numbered calls."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        client_id: str,
        habit: str,
        keys: int,
        kinds: str,
        think_s: Span,
        uploaders: int,
        settings: dict[str, Any],
    ) -> None:
        super().__init__(world, name)
        random = world.scheduler.random
        todo = deque((key, random.choice(kinds)) for key in range(keys))
        self.calls: list[tuple[tuple[int, str], ...]] = []
        while todo:
            count = 1 + random.randrange(min(ENTRIES_PER_CALL_MAX, len(todo)))
            self.calls.append(tuple(todo.popleft() for _ in range(count)))
        self.client_id = client_id
        self.habit = habit
        self.stride = random.choice((1, 1, 3)) if habit == "source" else 1
        """Numbers may have gaps; whoever begins at the mark counts them."""
        self.think_s = think_s
        self.uploaders = uploaders
        self.settings = settings
        self.answered = 0
        """Calls from the first on that are known to be in the queue, or, of a twin, that it is done with."""
        self.gave_up = False
        if habit != "twin":
            world.checks.append(self._check_end)

    @property
    def is_done(self) -> bool:
        if self.habit == "twin" and self.is_up:  # it waits for answers to calls that it counts as made
            return False
        return self.gave_up or self.answered == len(self.calls)

    def run(self, host: Host) -> None:
        _Life(self, host).run()

    def ended(self, error: Exception | None) -> float | None:
        if error is None:
            return None
        if isinstance(error, MarksLost):
            self.world.queue.said_marks_lost(error)
            self.gave_up = True  # for an operator to look at
            return None
        passes = isinstance(error, ContentionError | ProducerStopped | IdempotencyConflict | _Restart)
        passes = passes or type(error) is AppendOutcomeUnknown
        if passes or (isinstance(error, StorageError) and error.retryable):
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)

    def record(self, place: int, client_seq: int) -> tuple[Record, ...]:
        return tuple(Record(self.name, key, self.life, client_seq, kind) for key, kind in self.calls[place])

    def settled(self, sent: _Sent, outcome: Settled) -> None:
        """What the application is told about one call."""
        queue, counts = self.world.queue, self.world.scheduler.counts
        counts[f"call settled: {type(outcome).__name__}"] += 1
        in_queue = False
        if isinstance(outcome, Durable):
            queue.said_durable(sent.records, outcome.sequence, outcome.location)
            in_queue = True
        elif isinstance(outcome, IdempotencyConflict):
            counts[f"conflict: in_queue={outcome.in_queue}"] += 1
            if outcome.in_queue is False:
                self.world.scheduler.violate(f"{self.name} passed nothing over, but: {outcome}")
            if self.habit != "twin":  # nobody else has used the number, so an earlier life of ours has
                queue.said_present(sent.records, outcome)
                in_queue = True
        elif isinstance(outcome, StateLost) and not isinstance(outcome, MarksLost):  # that one makes no claim
            self.world.scheduler.violate(f"{self.name} was told of a loss\n{describe_error(outcome)}")
        elif not isinstance(outcome, ProducerStopped | MarksLost | AppendOutcomeUnknown):
            queue.said_absent(sent.records, outcome)
        if in_queue and sent.place == self.answered:
            self.answered += 1

    def _check_end(self) -> None:
        if not self.gave_up:
            self.world.queue.check_landed(self.name, (key for call in self.calls for key, _ in call))


class _Life:
    """The memory of one process."""

    def __init__(self, actor: ClientActor, host: Host) -> None:
        config = ProducerConfig(store=host.store, **actor.settings)
        self._actor = actor
        self._host = host
        self._max_batch_bytes = config.max_batch_bytes
        self._committing = Committing(actor, host, config, self._on_settled, actor.client_id)
        self._intake = self._committing.intake
        self._unanswered: deque[_Sent] = deque()
        self._failure: BufferQueueError | None = None

    def run(self) -> None:
        actor, process = self._actor, self._host.process
        durable_seq = self._committing.committer.open()
        actor.world.queue.opened(actor.name, actor.life, durable_seq)
        self._seqs = ClientSeqs(actor.client_id, durable_seq)
        self._committing.start(actor.uploaders)
        for place in range(self._begin(), len(actor.calls)):
            self._produce(place)
            process.sleep(actor.draw(actor.think_s))
            self._check_failure()
            if not actor.world.is_calm and actor.chance(RESTART_CHANCE):
                raise _Restart
        self._committing.flush()
        while self._unanswered:
            self._committing.settled.wait()
            self._check_failure()
        if actor.habit == "twin":
            actor.answered = len(actor.calls)

    def _begin(self) -> int:
        """The place of the first call to be made."""
        actor = self._actor
        if actor.habit == "source":
            return max(0, actor.answered - actor.world.scheduler.random.randrange(REPLAYS_MAX + 1))
        if actor.habit == "mark":
            self._committing.committer.check_opened()
            actor.answered = self._seqs.next
            actor.world.queue.said_present(
                [record for place in range(actor.answered) for record in actor.record(place, place)],
                "its mark is beyond them",
            )
        return actor.answered

    def _produce(self, place: int) -> None:
        actor = self._actor
        client_seq = place * actor.stride
        if actor.habit == "twin":
            client_seq = self._seqs.next + actor.world.scheduler.random.choice((0, 0, 1, 7))
        records = actor.record(place, client_seq)
        number = self._seqs.number(client_seq)
        if number is None:
            handle = self._seqs.replayed(client_seq, self._host.clock.now_ms())
            if self._seqs.is_earlier(client_seq):
                replays = self._committing.committer.replays
                assert replays is not None, "a client has them"
                handle = replays.settled(handle, self._seqs.opened_at)
            outcome = handle.watcher.result()
            if isinstance(outcome, AppendOutcomeUnknown):  # nobody could look: whoever comes next does
                raise outcome
            if outcome is not None:  # else it is told with the batches before it, which answer for themselves
                actor.settled(_Sent(place, client_seq, records), outcome)
            return
        call = check_call([record.to_bytes() for record in records], b"", self._max_batch_bytes)
        accepted = self._intake.offer(call, b"", number)
        assert accepted is not None, "a simulated producer's buffer is never full"
        self._seqs.accepted(number, accepted)
        self._unanswered.append(_Sent(place, client_seq, records))
        if actor.habit == "twin":
            actor.answered = place + 1  # whatever becomes of it, it is not repeated
        self._committing.accepted()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_settled(self, batch: PendingBatch, outcome: Settled) -> None:
        self._intake.release(batch)
        if not self._host.process.alive:  # its threads are being taken down: nobody is told anything
            return
        self._host.process.note(f"batch settled: {outcome if isinstance(outcome, Durable) else repr(outcome)}")
        assert batch.first_seq is not None, "every call has a number"
        assert batch.last_seq is not None, "every call has a number"
        mine = [sent for sent in self._unanswered if batch.first_seq <= sent.client_seq <= batch.last_seq]
        for sent in mine:
            self._unanswered.remove(sent)
            told = outcome.for_call(sent.client_seq) if isinstance(outcome, IdempotencyConflict) else outcome
            self._actor.settled(sent, told)
        if isinstance(outcome, BufferQueueError):
            self._failure = self._failure or outcome
        self._committing.settled.notify_all()
