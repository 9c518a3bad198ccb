"""The threads of a simulated producer: its uploaders and its appender, around the real `Intake` and `Committer`.

The real ones are in `buffer.produce.engine`; here they are threads of the scheduler, which end with the process.
"""

from __future__ import annotations

from collections.abc import Callable

from buffer.config import ProducerConfig
from buffer.produce.append import Committer
from buffer.produce.durability import Settled
from buffer.produce.intake import Intake, PendingBatch
from buffer.testing.simulator.scheduler import Signal, describe_error
from buffer.testing.simulator.world import Actor, Host

SEAL_CHANCE = 0.6


class Committing:
    """What one process has accepted, on its way into the queue. `settled` is for whoever waits for answers."""

    def __init__(
        self,
        actor: Actor,
        host: Host,
        config: ProducerConfig,
        on_settled: Callable[[PendingBatch, Settled], None],
        client_id: str | None = None,
    ) -> None:
        self._actor = actor
        self._process = host.process
        self.intake = Intake(config, host.clock)
        self.committer = Committer(host.store, host.clock, config, on_settled, client_id)
        self._sealed = Signal(host.process)
        self._uploaded = Signal(host.process)
        self.settled = Signal(host.process)

    def start(self, uploaders: int) -> None:
        for _ in range(uploaders):
            self._process.thread(self._upload_for_ever, self._thread_ended)
        self._process.thread(self._append_for_ever, self._thread_ended)

    def accepted(self) -> None:
        """A call was offered: its batch goes its way when it is full, or when chance says so."""
        self.intake.seal_if_due()
        if self._actor.chance(SEAL_CHANCE):
            self.intake.seal()
        if self.intake.sealed:
            self._sealed.notify_all()

    def flush(self) -> None:
        self.intake.seal()
        self._sealed.notify_all()

    def _upload_for_ever(self) -> None:
        while True:
            while not self.intake.sealed:
                self._sealed.wait()
            self.committer.enlist(self.intake.sealed[0])
            self.committer.upload(self.intake.take())
            self._uploaded.notify_all()

    def _append_for_ever(self) -> None:
        while True:
            while not self.committer.is_ready:
                self._uploaded.wait()
            self.committer.commit()

    def _thread_ended(self, error: Exception | None) -> None:
        assert error is not None, "these threads run for ever"
        self._actor.world.scheduler.violate(f"a thread of {self._actor.name} died\n{describe_error(error)}")
