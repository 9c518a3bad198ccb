"""Somebody who opens a plain consumer on the queue, out of curiosity: it fences the loader and acks nothing."""

from __future__ import annotations

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import ContentionError, Fenced, StorageError
from buffer.ledger.plan import Ledger
from buffer.names import ledger_path
from buffer.testing.simulator.world import MANIFEST_PATH, Actor, Host


class BrowserActor(Actor):
    def run(self, host: Host) -> None:
        if not self._is_loader_known():
            return  # a consumer before the first loader makes that one ask for `adopt`, and rightly so
        consumer = Consumer.new(ConsumerConfig(store=host.store, gc_enabled=False), clock=host.clock)
        self.world.queue.claimed(host.process, consumer.epoch)
        consumer.next_batch()

    def _is_loader_known(self) -> bool:
        ledger = self.world.server.objects.get(ledger_path(MANIFEST_PATH))
        return ledger is not None and Ledger.from_bytes(ledger).born

    def ended(self, error: Exception | None) -> float | None:
        return None if isinstance(error, Fenced | StorageError | ContentionError) else super().ended(error)
