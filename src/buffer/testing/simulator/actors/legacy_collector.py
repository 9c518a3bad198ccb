"""A Collector of the older format: the real `Claims`, with its heartbeat as a second thread of the same process.

It holds several batches at a time and acks them in any order, sometimes long after its claims went stale.
"""

from __future__ import annotations

from typing import Any

from buffer.errors import AckOutcomeUnknown, ClaimLost, ContentionError, StorageError
from buffer.legacy.claims import Claims, CollectedBatch
from buffer.legacy.config import CollectorConfig
from buffer.legacy.manifests import BEATS_PER_TIMEOUT
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.legacy_witness import LEGACY_PATH, LegacyWitness
from buffer.testing.simulator.scheduler import describe_error
from buffer.testing.simulator.world import Actor, Host, World

ACK_CALLS_MAX = 3  # then it gives the batch up


class LegacyCollectorActor(Actor):
    def __init__(
        self,
        world: World,
        name: str,
        witness: LegacyWitness,
        *,
        poll_s: Span,
        work_s: Span,
        holds: int,
        settings: dict[str, Any],
    ) -> None:
        super().__init__(world, name)
        self.witness = witness
        self.poll_s = poll_s
        self.work_s = work_s
        self.holds = holds
        """How many batches it works on at a time."""
        self.settings = settings

    def run(self, host: Host) -> None:
        config = CollectorConfig(store=host.store, manifest_path=LEGACY_PATH, **self.settings)
        claims = Claims(host.store, config, host.clock)
        interval_s = config.heartbeat_timeout_ms / BEATS_PER_TIMEOUT / 1000
        host.process.thread(lambda: self._beat_for_ever(host, claims, interval_s), self._heartbeat_ended)
        batches: list[CollectedBatch] = []
        while True:
            batch = self._next_batch(host, claims)
            if batch is not None:
                self.witness.delivered(host.process, batch.location, batch.claimed_ms, batch.entries)
                batches.append(batch)
                host.process.sleep(self.draw(self.work_s))
            if batches and (batch is None or len(batches) >= self.holds):
                self._ack(host, claims, batches.pop(self.world.scheduler.random.randrange(len(batches))))
            elif batch is None:
                self.rest(host, self.poll_s)

    def _next_batch(self, host: Host, claims: Claims) -> CollectedBatch | None:
        try:
            return claims.next_batch()
        except (StorageError, ContentionError) as error:
            if not isinstance(error, ContentionError) and not error.retryable:
                raise
            host.process.note(f"next_batch failed: {error}")
            return None

    def _ack(self, host: Host, claims: Claims, batch: CollectedBatch) -> None:
        counts = self.world.scheduler.counts
        for _ in range(ACK_CALLS_MAX):
            try:
                claims.ack(batch)
            except ClaimLost:
                counts["acks: claim lost"] += 1
                self.witness.told_lost(host.process, batch.location, batch.claimed_ms)
                return
            except AckOutcomeUnknown:
                counts["acks: unknown"] += 1
                return
            except (StorageError, ContentionError) as error:
                host.process.note(f"ack failed: {error}")
                continue
            counts["acks"] += 1
            self.witness.told_acked(host.process, batch.location, batch.claimed_ms)
            return
        claims.release(batch)

    def _beat_for_ever(self, host: Host, claims: Claims, interval_s: float) -> None:
        while True:
            host.process.sleep(interval_s)
            try:
                lost = claims.beat()
            except (StorageError, ContentionError) as error:
                host.process.note(f"no heartbeat: {error}")
            else:
                self.world.scheduler.counts["claims lost, seen by the heartbeat"] += len(lost)

    def _heartbeat_ended(self, error: Exception | None) -> None:
        assert error is not None, "it runs for ever"
        self.world.scheduler.violate(f"the heartbeat of {self.name} died\n{describe_error(error)}")
