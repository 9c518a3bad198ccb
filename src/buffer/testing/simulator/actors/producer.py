"""A producer: the real `Intake` and `Committer`, with the threads of `committing.py`.

What an application does with the answers: what surely is not in the queue is produced again; what is unknown is
left alone; what a crash left open is unknown too.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from buffer.config import ProducerConfig
from buffer.errors import AppendOutcomeUnknown, StateLost
from buffer.produce.durability import DurabilityWatcher, Durable, Settled
from buffer.produce.intake import PendingBatch, check_call
from buffer.testing.simulator.actors.committing import Committing
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.scheduler import describe_error
from buffer.testing.simulator.witness import Record
from buffer.testing.simulator.world import Actor, Host, World

ENTRIES_PER_CALL_MAX = 2


class ProducerActor(Actor):
    """Produces `keys` records, each of a kind that is drawn from `kinds`."""

    def __init__(
        self, world: World, name: str, *, keys: int, think_s: Span, kinds: str, uploaders: int, settings: dict[str, Any]
    ) -> None:
        super().__init__(world, name)
        self.todo = deque((key, world.scheduler.random.choice(kinds)) for key in range(keys))
        self.unsettled: dict[DurabilityWatcher, list[Record]] = {}
        self.think_s = think_s
        self.uploaders = uploaders
        self.settings = settings

    def run(self, host: Host) -> None:
        _Life(self, host).run()

    def crashed(self) -> None:
        self.unsettled.clear()  # nobody was told: they may be in the queue or not

    @property
    def is_done(self) -> bool:
        return not self.todo and not self.unsettled

    def settled(self, batch: PendingBatch, outcome: Settled) -> None:
        """What the application is told about the calls of one batch."""
        records = self.unsettled.pop(batch.watcher, [])
        queue = self.world.queue
        self.world.scheduler.counts[f"batch settled: {type(outcome).__name__}"] += 1
        if isinstance(outcome, Durable):
            queue.said_durable(records, outcome.sequence, outcome.location)
        elif isinstance(outcome, StateLost):
            self.world.scheduler.violate(f"{self.name} was told of a loss\n{describe_error(outcome)}")
        elif not isinstance(outcome, AppendOutcomeUnknown):
            queue.said_absent(records, outcome)
            self.todo.extend((record.key, record.kind) for record in records)


class _Life:
    """The memory of one producer process."""

    def __init__(self, actor: ProducerActor, host: Host) -> None:
        config = ProducerConfig(store=host.store, **actor.settings)
        self._actor = actor
        self._host = host
        self._max_batch_bytes = config.max_batch_bytes
        self._committing = Committing(actor, host, config, self._on_settled)
        self._intake = self._committing.intake
        self._calls = 0

    def run(self) -> None:
        process = self._host.process
        self._committing.start(self._actor.uploaders)
        while not self._actor.is_done:
            if self._actor.todo:
                self._produce()
                process.sleep(self._actor.draw(self._actor.think_s))
                continue
            self._committing.flush()
            if not self._actor.is_done:
                self._committing.settled.wait()

    def _produce(self) -> None:
        actor = self._actor
        count = 1 + actor.world.scheduler.random.randrange(min(ENTRIES_PER_CALL_MAX, len(actor.todo)))
        records = [
            Record(actor.name, key, actor.life, self._calls, kind)
            for key, kind in (actor.todo.popleft() for _ in range(count))
        ]
        self._calls += 1
        call = check_call([record.to_bytes() for record in records], b"", self._max_batch_bytes)
        handle = self._intake.offer(call)
        assert handle is not None, "a simulated producer's buffer is never full"
        actor.unsettled.setdefault(handle.watcher, []).extend(records)
        self._committing.accepted()

    def _on_settled(self, batch: PendingBatch, outcome: Settled) -> None:
        self._intake.release(batch)
        self._host.process.note(f"batch settled: {outcome if isinstance(outcome, Durable) else repr(outcome)}")
        self._actor.settled(batch, outcome)
        self._committing.settled.notify_all()
