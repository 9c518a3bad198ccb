"""What others take over from workers that share a queue by leases, and when they must not. Pure.

**Sequences mean what the section means only in the queue that the workers had.** A manifest that was put back from a
backup gives the sequences that it lost once more, to other batches: whoever skipped those as finished would lose them.
So consumers and loaders look before they take anything over (`check_same_queue`).

A loader is stricter. The section `leases` stays in the ledger, as it was in the moment of the loader's binding: that is
a write of the same object, and no worker writes its section into a ledger that names an app. So an ack lands before it,
and the batch is finished, or never.

- **Finished is finished**, in whatever order: the loader skips it, and no range of its spans it.
- **Given back, delayed, blocked, untouched**: the loader's. It loads whole batches, and what is wrong with one of them
  is judged by its own rules. What `block_and_dlq` has copied is loaded, too: the copy is one more, by that strategy.
- **Acked in part**: refused. A range holds whole batches, so what a worker has finished would be in the table, too.
- **On its way to the dead-letter queue**: refused. A parker may be at it; a worker brings it there when it consumes.
- **Leased**: refused. Workers are at work, and a binding cannot be undone: a loader that was started on the wrong
  queue would take it from them for good. Leases end by themselves once the workers are stopped.
- **Claimed by somebody else since**: refused (`is_left`). What a plain consumer has acked may still be in the queue.
"""

from __future__ import annotations

from buffer.errors import CorruptLedger, QueueBehindConsumer, QueueBound
from buffer.ledger.envelope import Envelope, WrongField
from buffer.ledger.leases import LeaseLedger, Leases, Phase
from buffer.ledger.ranges import Runs

SHOWN_MAX = 10  # batches in a message


def workers_of(ledger: Envelope | None, *, location: str | None = None) -> Leases | None:
    """What workers left in a ledger that was opened for another section. Raises CorruptLedger."""
    document = None if ledger is None else ledger.sections.get("leases")
    if document is None:
        return None
    try:
        return Leases.from_json(document)
    except WrongField as error:
        raise CorruptLedger(
            f"the ledger {location!r} is damaged: {error}. {LeaseLedger.way_out()}", location=location
        ) from error


def loader_of(ledger: Envelope) -> str | None:
    """The app id of the loader that has bound the queue, in a ledger that was opened for another section."""
    return (ledger.sections.get("plan") or {}).get("app_id")


def still_theirs(leases: Leases | None, *, ledger_epoch: int, queue_epoch: int, app_id: str | None) -> Leases | None:
    """The section while the queue is the workers': their epoch is the ledger's and the manifest's.

    The section stays where it is when another reader takes the queue over, and nobody writes it any more. What it says
    then of depth and leases was true once. A loader names itself in the ledger, a consumer puts its epoch there, one
    that knows no ledger has its epoch in the manifest alone.
    """
    if leases is None or app_id is not None:
        return None
    return leases if leases.epoch == ledger_epoch == queue_epoch else None


def check_free(leases: Leases, clock_ms: int) -> None:
    """Raises QueueBound while the workers of a queue have something in hand that a loader cannot take over."""
    now_ms = leases.now_ms(clock_ms)
    held: dict[str, list[int]] = {}
    for sequence, batch in leases.batches.items():
        phase = batch.phase(now_ms)
        if phase is Phase.PARKING:
            why = "on the way to the dead-letter queue: let a worker consume, which brings them there"
        elif phase is Phase.LEASED:
            why = "leased: stop the workers, and wait until these leases end"
        elif batch.owed is not None:
            why = "acked in part: let workers finish them, or `buffer leases park` them"
        else:
            continue
        held.setdefault(why, []).append(sequence)
    if held:
        stories = "; ".join(f"batches {_some(sequences)} are {why}" for why, sequences in held.items())
        raise QueueBound(
            f"workers share this queue by leases, and a loader loads whole batches: {stories}. Start the loader again "
            "then: it skips what they have finished, and from there on the queue is the loader's. Nothing was changed"
        )


def _some(sequences: list[int]) -> str:
    more = len(sequences) - SHOWN_MAX
    return ", ".join(map(str, sequences[:SHOWN_MAX])) + (f" and {more} more" if more > 0 else "")


def finished_runs(leases: Leases | None) -> Runs:
    """All that workers have finished, the prefix included."""
    if leases is None:
        return ()
    prefix = ((0, leases.finished_through),) if leases.finished_through >= 0 else ()
    return (*prefix, *leases.finished)


def all_finished(finished: Runs, first: int, last: int) -> bool:
    """Whether workers have finished every sequence from `first` to `last`. Runs never touch: one has them all."""
    return first > last or any(low <= first and last <= high for low, high in finished)


def is_left(leases: Leases, *, ledger_epoch: int, queue_epoch: int, first_sequence: int, is_shut: bool = False) -> bool:
    """Whether the queue is as workers left it: all that has left it, up to `first_sequence`, was finished by them, and
    nobody else has claimed it since. A reader acks before it dequeues, so only the epochs tell that it was there.

    `is_shut`: the ledger names an app already. A worker that had not seen that may have claimed the manifest since. It
    does nothing before its own write of the ledger, which is refused; and as no worker gets in any more, nobody else
    could bring the epochs together again.
    """
    nobody = queue_epoch == ledger_epoch or (is_shut and queue_epoch > ledger_epoch)
    return leases.epoch == ledger_epoch and nobody and first_sequence <= leases.finished_through + 1


def is_between(leases: Leases, *, ledger_epoch: int, queue_epoch: int) -> bool:
    """Somebody has claimed the manifest and is not in the ledger: a worker will be there soon, if it lives."""
    return leases.epoch == ledger_epoch < queue_epoch


def check_same_queue(leases: Leases, *, next_sequence: int, location: str, epoch: int | None = None) -> None:
    """Raises QueueBehindConsumer if the manifest, read after the ledger, is behind what the section tells of."""
    if leases.furthest >= next_sequence:
        raise queue_behind(leases.furthest, next_sequence, location)
    if epoch is not None and epoch < leases.epoch:
        raise QueueBehindConsumer(
            f"workers claimed {location!r} with epoch {leases.epoch}, and it is at {epoch}: {_WENT_BACK}",
            location=location,
            last_acked=leases.furthest,
            next_sequence=next_sequence,
        )


def queue_behind(known: int, next_sequence: int, location: str) -> QueueBehindConsumer:
    """The error for a manifest that has never held a sequence which workers had."""
    return QueueBehindConsumer(
        f"sequence {known} was delivered, but {location!r} has only ever held sequences below {next_sequence}: "
        f"{_WENT_BACK}",
        location=location,
        last_acked=known,
        next_sequence=next_sequence,
    )


_WENT_BACK = (
    "it is another queue, or was restored from a backup. Put the newest manifest back. To begin anew with what this "
    "one holds, stop all who use the queue and delete its ledger; what workers have finished is not known then, and "
    "marks of client ids are gone with it"
)
