"""Every error this project raises, in one tree. Named by remedy: the class says what to do about it.

    BufferQueueError
    ├── InvalidInput            fix the call: nothing was done              (also a ValueError)
    │   ├── InvalidConfig       fix the setting it names
    │   ├── OutOfOrderAck       ack in order: the state is as it was
    │   └── InvalidHandle       the lease is over: drop the work, it was or will be delivered again
    ├── CorruptData             the bytes are damaged or of another version; retrying will not help
    │   ├── CorruptBatch
    │   │   ├── LocationRefused the manifest names something that is not the queue's to read
    │   │   └── BatchTooLarge   over this reader's max_batch_bytes: raise it if the batch is genuine
    │   ├── CorruptManifest
    │   └── CorruptLedger
    ├── StorageError            the object store failed; retry, or fix what the message names
    │   ├── ObjectNotFound      no object at that location
    │   ├── ObjectTooLarge      more bytes than the reader allows: nothing was read
    │   ├── StoreUnusable       missing bucket, no permission, read-only folder, full disk
    │   │   └── Unsupported     the server lacks what was asked of it, conditional writes say: use another one
    │   └── Throttled           the store asked for fewer requests
    ├── ContentionError         too many others wrote at the same time: safe to call again
    ├── CapExceeded             a cap of the queue's leases holds: wait, or raise it with `configure`
    │   ├── AckHoleCapExceeded
    │   └── InFlightCapExceeded
    ├── QueueFull               let the readers catch up, then produce again: nothing was accepted
    ├── AppendOutcomeUnknown    the append may or may not have happened: look before repeating
    │   └── BatchCollected      it happened too late: its batch is gone, look whether a reader got it before
    ├── IdempotencyConflict     a call with this client_seq or a later one is in the queue: do not repeat it
    ├── ProducerStopped         an earlier call failed: open a new producer, repeat all that was not durable
    ├── ClaimLost               another Collector took the batch over: drop what was made of it
    ├── AckOutcomeUnknown       the ack may or may not have counted: look before repeating the work
    ├── Fenced                  another consumer took over: stop, do not restart at once
    ├── QueueBound              the queue feeds another app or other tables: use those, or adopt it
    ├── StateLost               durable state is missing or went backwards: an operator decides
    │   ├── ManifestLost
    │   ├── LedgerLost
    │   ├── MarksLost
    │   ├── QueueBehindConsumer
    │   └── QueueAheadOfConsumer
    └── Closed                  the object was closed before

Facts are attributes (`error.location`), and every error survives pickling: Spark executors raise them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from buffer.root_error import BufferQueueError as BufferQueueError


class InvalidInput(BufferQueueError, ValueError):
    """The call cannot be right as it is. Nothing was done."""


class InvalidConfig(InvalidInput):
    """A setting has a name or a value that is not allowed."""

    key: str
    value: Any


class OutOfOrderAck(InvalidInput):
    """Acks go up one by one (`ack`) or forward (`ack_through`), never past what was handed out."""

    sequence: int
    expected: int


class InvalidHandle(InvalidInput):
    """A lease that is named does not hold the batch any more. Nothing moved, for none of the handles in the call.

    The lease ran out, the batch was acked or given back, or it is being parked. `handles` names those that do not
    hold as (lease_id, sequence): the others may be tried again without them.
    """

    handles: tuple[tuple[str, int], ...]


class CorruptData(BufferQueueError):
    """Bytes read from outside break the format. `location` is set where the reader knew it."""

    location: str | None
    offset: int | None
    version: int | None


class CorruptBatch(CorruptData):
    """A `.batch` object that cannot be decoded."""


class LocationRefused(CorruptBatch):
    """A manifest entry whose location lies outside the queue's folders, or that no store accepts. Nothing was read."""


class BatchTooLarge(CorruptBatch):
    """A batch over this reader's `max_batch_bytes`. Damaged, or genuine, and then a matter of the reader's settings."""


class CorruptManifest(CorruptData):
    """A manifest that cannot be decoded."""


class CorruptLedger(CorruptData):
    """A ledger that cannot be decoded, or holds what this release does not know and would have to obey.

    `version` is set where a newer release can read it: upgrade.
    """

    sections: tuple[str, ...]


class StorageError(BufferQueueError):
    """The object store did not do what was asked. `retryable` tells whether asking again can help."""

    location: str | None
    url: str | None
    retryable: bool


class ObjectNotFound(StorageError):
    """There is no object at `location`."""


class ObjectTooLarge(StorageError):
    """The object at `location` has `size` bytes, more than was asked for. Nothing of it was read."""

    size: int


class StoreUnusable(StorageError):
    """The store as configured cannot work: missing bucket, no permission, read-only folder, full disk."""


class Unsupported(StoreUnusable):
    """The server does not know this kind of request, or tells no versions of objects. It never will: nothing passes."""


class Throttled(StorageError):
    """The store answered 429 or the like: too many requests for now."""


class ContentionError(BufferQueueError):
    """A compare-and-swap gave up: call again, perhaps less often.

    Of an append, surely nothing was written. A claim or an ack whose reply was lost may have landed; both may be
    repeated.
    """

    location: str
    attempts: int


class CapExceeded(BufferQueueError):
    """Back-pressure: a cap of the queue holds. Nothing is lost; wait for others, or raise the cap."""

    cap: int
    count: int


class AckHoleCapExceeded(CapExceeded):
    """Too many gaps among the acked batches: finish what stands in them first."""


class InFlightCapExceeded(CapExceeded):
    """As many batches are leased as the queue allows."""


class AppendOutcomeUnknown(BufferQueueError):
    """An append may have landed and nothing can tell. Appending again could duplicate the batches."""

    location: str
    locations: tuple[str, ...]
    expected_sequence: int


class Doubt(NamedTuple):
    """Calls of a client, by number, that are in the queue by their mark, and what is known of their batch."""

    first: int
    last: int
    error: AppendOutcomeUnknown


class QueueFull(BufferQueueError):
    """The queue holds more batches than `max_depth` allows. Nothing was accepted: call again later."""

    location: str
    depth: int
    max_depth: int


class IdempotencyConflict(BufferQueueError):
    """The queue holds a call of this client with the same `client_seq` or a later one. Nothing was written.

    Either the call is a replay, and then it is in the queue; or another producer uses the same client id. Also where
    the queue holds a call of the client that this producer did not make since it opened, whatever its number is.

    Before anybody says so the batch is looked at. A call whose entry is in the queue without one, after an append that
    landed a day too late, fails with BatchCollected instead, each time it is repeated while that entry waits: produce
    its entries again under a new client_seq. Where nobody can see the batch it is AppendOutcomeUnknown: repeat it.
    """

    client_id: str
    client_seq: int
    durable_seq: int
    """The client's mark: the largest client_seq in the queue so far."""
    in_queue: bool | None
    """Whether that very call is in the queue; None where a twin may have used its number."""
    doubts: tuple[Doubt, ...]
    """Of a batch of several calls: those that are in the queue by their mark, and perhaps without a batch."""

    @classmethod
    def of(cls, client_id: str, client_seq: int, *, durable_seq: int, in_queue: bool | None) -> Self:
        told = {
            True: "it is a replay, and the call is in the queue; unless another producer has used this client id for a "
            "call of its own, which must not be",
            False: "that number was passed over and is not in the queue: client_seqs must grow, so produce its entries "
            "under a new one",
            None: "either it is a replay of a call from an earlier run, whose last append landed late, and it is in "
            "the queue; or another producer uses this client id at the same time, which must not be. Make sure that "
            "there is only one, open it again and repeat what was not durable",
        }
        return cls(
            f"client {client_id!r} is at client_seq {durable_seq} in the queue, so its call {client_seq} was not "
            f"written: {told[in_queue]}",
            client_id=client_id,
            client_seq=client_seq,
            durable_seq=durable_seq,
            in_queue=in_queue,
        )

    @classmethod
    def of_twin(cls, client_id: str, client_seq: int, *, durable_seq: int, own_seq: int) -> Self:
        """Another producer's mark is in the queue, below ours: the numbers have gaps, and the two would take turns."""
        own = "it found none there when it opened" if own_seq < 0 else f"its own newest there is {own_seq}"
        return cls(
            f"client {client_id!r} is at client_seq {durable_seq} in the queue, and this producer did not put it "
            f"there: {own}. So its call {client_seq} was not written: either a write of an earlier run landed late, a "
            "replay of which may come; or another producer uses this client id at the same time, which must not be. "
            "Make sure that there is only one, open it again and repeat what was not durable",
            client_id=client_id,
            client_seq=client_seq,
            durable_seq=durable_seq,
            in_queue=False,
        )

    def doubted(self, doubts: tuple[Doubt, ...]) -> Self:
        """The same of a batch some of whose calls are in the queue by their mark only."""
        error = type(self)(f"{self.message}. But: {doubts[0].error}", **{**self.facts, "doubts": doubts})
        error.__cause__ = doubts[0].error
        return error

    def for_call(self, client_seq: int | range) -> BufferQueueError:
        """What this conflict of a batch means for one of the calls in it."""
        first, last = (client_seq[0], client_seq[-1]) if isinstance(client_seq, range) else (client_seq, client_seq)
        for doubt in self.doubts or ():
            if doubt.first <= last and first <= doubt.last:
                return doubt.error
        if first > self.durable_seq:
            return ProducerStopped.after(self, self.client_id, first)
        return type(self).of(self.client_id, first, durable_seq=self.durable_seq, in_queue=self.in_queue)


class ProducerStopped(BufferQueueError):
    """A producer with a client id accepts nothing after a call that failed.

    Open a new one and produce all that was not durable again, in order and with the same client_seqs: what is in the
    queue after all is recognised.
    """

    client_id: str
    client_seq: int | None
    """A call that is not known to be durable; the first of them begins the repetition."""

    @classmethod
    def after(cls, cause: BaseException, client_id: str, client_seq: int | None = None) -> Self:
        call = "" if client_seq is None else f", so its call {client_seq} was not made durable"
        error = cls(
            f"the producer of client {client_id!r} stopped after {type(cause).__name__}: {cause}{call}. Open a new one "
            "and repeat all calls that were not durable, in order and with the same client_seqs: what is in the queue "
            "after all is recognised",
            client_id=client_id,
            client_seq=client_seq,
        )
        error.__cause__ = cause
        return error


class BatchCollected(AppendOutcomeUnknown):
    """An append landed a day after its batch was named, on a machine that slept say, and the batch is gone.

    The collector took it for an orphan. `sequence` is an entry of the queue without an object at `location`: a loader
    makes it a dead letter or blocks, `Consumer.skip` goes past it. Unless a reader was faster than the collector, the
    entries are lost: look before producing again. With a client id, too, and then under a new client_seq: the mark of
    the old one is in the queue, so a repetition of it is a conflict.
    """

    sequence: int


class ClaimLost(BufferQueueError):
    """Of the older format: this Collector does not hold the batch any more, and its ack changed nothing."""

    location: str


class AckOutcomeUnknown(BufferQueueError):
    """Of the older format: the batch is done, but an ack without an answer cannot tell whose work counted."""

    location: str


class Fenced(BufferQueueError):
    """A newer consumer has claimed the queue. Stop; restarting at once makes two consumers duel."""

    epoch: int
    current_epoch: int

    @classmethod
    def by_newer(cls, who: str, what: str, *, epoch: int | None, current: int) -> Self:
        """`who` held `epoch`, and `what` says that another one is at `current`."""
        return cls(
            f"this {who} holds epoch {epoch}, the {what} is at {current}: another {who} took over. Stop; a restart "
            "would fence that one in turn",
            epoch=epoch,
            current_epoch=current,
        )


class QueueBound(BufferQueueError):
    """The queue's ledger names another app or other tables, or workers with leases have its batches in hand.

    Nothing was claimed.
    """

    app_id: str
    tables: tuple[str, ...]
    bound_app_id: str
    bound_tables: tuple[str, ...]


class StateLost(BufferQueueError):
    """Durable state is missing or went backwards. Nothing was changed; an operator must decide."""

    location: str


class ManifestLost(StateLost):
    """The manifest was there and is gone, or it went back to an earlier state."""

    next_sequence: int
    seen_next_sequence: int


class LedgerLost(StateLost):
    """The queue was in use by a loader, but its ledger is missing."""

    first: int
    """… to `last`: the range that is in some tables only, where that is why the queue cannot be adopted."""
    last: int


class MarksLost(StateLost):
    """Entries left the queue without their client marks being kept: nobody can tell which calls were in it."""

    through: int
    first_sequence: int


class QueueBehindConsumer(StateLost):
    """The consumer has acked more than the queue ever held."""

    last_acked: int
    next_sequence: int


class QueueAheadOfConsumer(StateLost):
    """Batches that this consumer never saw are gone from the queue: another one dequeued them."""

    expected: int
    first_sequence: int


class Closed(BufferQueueError):
    """The producer, consumer or collector was closed before this call."""
