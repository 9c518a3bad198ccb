"""Redrive: every batch of a dead-letter queue goes back to the queue that it came from.

The dead-letter queue is a queue with leases whose own dead-letter queue is the source; `dead_letters.py` notices who
goes home. So several redrives may run at once, and one that died is finished by the next: each batch has one ordinal.
What another queue has parked there stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from buffer import metrics
from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.config import ConsumerConfig, LeaseConfig
from buffer.errors import AckHoleCapExceeded, InvalidConfig, InvalidInput
from buffer.leases.values import Peeked
from buffer.ledger.lease_steps import whole
from buffer.ledger.leases import Phase
from buffer.model import BatchDescriptor

PEEKED_AT_ONCE = 100  # what workers hold in the dead-letter queue is passed by, up to here
BUSY = Backoff(first_s=0.05, max_s=1.0, attempts_max=1_000_000, jitter_from=0.5)
"""Pauses while another one is parking in the same queue."""

Where = Callable[[BatchDescriptor], bool]
"""Which letters are meant."""

_MOVABLE = (Phase.AVAILABLE, Phase.BLOCKED, Phase.PARKING)


class Letters(Protocol):
    """What a redrive needs of the dead-letter queue: a `LeaseQueue` has it."""

    @property
    def config(self) -> ConsumerConfig: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> LeaseConfig: ...

    def peek(self, max_batches: int, *, where: Where | None) -> Sequence[Peeked]: ...

    def park(self, sequence: int, reason: str, *, unread: bool) -> bool: ...


def redrive(
    letters: Letters,
    home: str | None,
    max_per_second: float | None,
    max_batches: int | None,
    on_moved: Callable[[], None] | None = None,
    where: Where | None = None,
) -> int:
    """Park what is in `letters` (of that, what `where` says) at home, its own dead-letter queue. Returns how many went.

    `on_moved` is called after each. The duration that is measured has no pauses in it.
    """
    clock = letters.clock
    started_s, waited_s = clock.monotonic_s(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal waited_s
        asleep_s = clock.monotonic_s()
        clock.sleep(seconds)
        waited_s += clock.monotonic_s() - asleep_s

    try:
        return _redrive(letters, home, max_per_second, max_batches, on_moved, where, sleep)
    finally:
        elapsed_s = clock.monotonic_s() - started_s - waited_s
        metrics.leases_duration_seconds.record(max(0.0, elapsed_s), {"verb": "redrive"})


def _redrive(
    letters: Letters,
    home: str | None,
    max_per_second: float | None,
    max_batches: int | None,
    on_moved: Callable[[], None] | None,
    where: Where | None,
    sleep: Callable[[float], None],
) -> int:
    if max_batches is not None:
        max_batches = whole("max_batches", max_batches)
    if max_per_second is not None and not (isinstance(max_per_second, int | float) and max_per_second > 0):
        raise InvalidInput(f"max_per_second={max_per_second!r} is not allowed: a number above 0, or None for no limit")
    path, kept = letters.config.manifest_path, letters.settings.dlq
    if kept != home:
        raise InvalidConfig(
            f"the dead-letter queue {path!r} has leases that park in {kept!r}, not in {home!r}: change that with "
            "`configure` first",
            key="dlq",
            value=kept,
        )
    moved = 0
    pauses = BUSY.pauses(letters.clock.jitter)
    while max_batches is None or moved < max_batches:
        movable = _movable(letters, where)
        if not movable:
            break
        try:
            went = letters.park(movable[0], reason="redriven", unread=False)
        except InvalidInput:
            if movable[0] in _movable(letters, where):
                raise
            continue  # another redrive was faster, or a worker has leased it
        except AckHoleCapExceeded as error:
            raise AckHoleCapExceeded(
                f"{moved} went back, and then the dead-letter queue {path!r} was at its own cap: {error}. What stands "
                "in its holes was parked by other queues, or is held by workers: redrive those queues first, or "
                f"`configure` {path!r}, not the queue that they go back to",
                cap=error.cap,
                count=error.count,
            ) from error
        if not went:
            sleep(next(pauses))
            continue
        moved += 1
        if on_moved is not None:
            on_moved()
        pauses = BUSY.pauses(letters.clock.jitter)
        if max_per_second is not None:
            sleep(1 / max_per_second)
    return moved


def _movable(letters: Letters, where: Where | None) -> list[int]:
    return [batch.sequence for batch in letters.peek(PEEKED_AT_ONCE, where=where) if batch.phase in _MOVABLE]
