"""Every error this project raises, in one tree. Named by remedy: the class says what to do about it.

    BufferQueueError
    ├── InvalidInput            fix the call: nothing was done              (also a ValueError)
    │   ├── InvalidConfig       fix the setting it names
    │   └── OutOfOrderAck       ack in order: the state is as it was
    ├── CorruptData             the bytes are damaged or of another version; retrying will not help
    │   ├── CorruptBatch
    │   ├── CorruptManifest
    │   └── CorruptLedger
    ├── StorageError            the object store failed; retry, or fix what the message names
    │   ├── ObjectNotFound      no object at that location
    │   ├── StoreUnusable       missing bucket, no permission, read-only folder, full disk
    │   └── Throttled           the store asked for fewer requests
    ├── ContentionError         too many others wrote at the same time: safe to call again
    ├── AppendOutcomeUnknown    the append may or may not have happened: look before repeating
    ├── Fenced                  another consumer took over: stop, do not restart at once
    ├── StateLost               durable state is missing or went backwards: an operator decides
    │   ├── ManifestLost
    │   ├── LedgerLost
    │   ├── QueueBehindConsumer
    │   └── QueueAheadOfConsumer
    └── Closed                  the object was closed before

Facts are attributes (`error.location`), and every error survives pickling: Spark executors raise them.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any


class BufferQueueError(Exception):
    """Root of the tree. `str(error)` says what happened, names the value, and says the way out."""

    _declared = frozenset[str]()
    """The facts that a class of errors has: its annotations, and those of its bases."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = (name for base in cls.__mro__ for name in inspect.get_annotations(base))
        cls._declared = frozenset(names)

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        unknown = facts.keys() - self._declared
        assert not unknown, f"{type(self).__name__} declares no fact named {sorted(unknown)}"
        self._facts = facts
        for name in self._declared:
            setattr(self, name, facts.get(name))

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: _portable(value, repr(value)) for name, value in self._facts.items()}
        cause = _portable(self.__cause__, Exception(f"{type(self.__cause__).__qualname__}: {self.__cause__}"))
        return _rebuild, (type(self), self.message, facts, cause, getattr(self, "__notes__", []))


def _portable(value: Any, substitute: Any) -> Any:
    """The value if it survives pickling, else the substitute: a foreign cause must not hide the error itself."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  (whatever a foreign class raises when it is pickled or rebuilt)
        return substitute
    return value


def _rebuild(
    cls: type[BufferQueueError],
    message: str,
    facts: dict[str, Any],
    cause: BaseException | None,
    notes: list[str],
) -> BufferQueueError:
    error = cls(message, **facts)
    error.__cause__ = cause
    for note in notes:
        error.add_note(note)
    return error


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


class CorruptData(BufferQueueError):
    """Bytes read from outside break the format. `location` is set where the reader knew it."""

    location: str | None
    offset: int | None
    version: int | None


class CorruptBatch(CorruptData):
    """A `.batch` object that cannot be decoded."""


class CorruptManifest(CorruptData):
    """A manifest that cannot be decoded."""


class CorruptLedger(CorruptData):
    """A ledger that cannot be decoded."""


class StorageError(BufferQueueError):
    """The object store did not do what was asked. `retryable` tells whether asking again can help."""

    location: str | None
    url: str | None
    retryable: bool


class ObjectNotFound(StorageError):
    """There is no object at `location`."""


class StoreUnusable(StorageError):
    """The store as configured cannot work: missing bucket, no permission, read-only folder, full disk."""


class Throttled(StorageError):
    """The store answered 429 or its kin: too many requests for now."""


class ContentionError(BufferQueueError):
    """A compare-and-swap gave up: call again, perhaps less often.

    Of an append, surely nothing was written. A claim or an ack whose reply was lost may have landed; both may be
    repeated.
    """

    location: str
    attempts: int


class AppendOutcomeUnknown(BufferQueueError):
    """An append may have landed and nothing can tell. Appending again could duplicate the batches."""

    location: str
    locations: tuple[str, ...]
    expected_sequence: int


class Fenced(BufferQueueError):
    """A newer consumer has claimed the queue. Stop; restarting at once makes two consumers duel."""

    epoch: int
    current_epoch: int


class StateLost(BufferQueueError):
    """Durable state is missing or went backwards. Nothing was changed; an operator must decide."""

    location: str


class ManifestLost(StateLost):
    """The manifest was there and is gone, or it went back to an earlier state."""

    next_sequence: int
    seen_next_sequence: int


class LedgerLost(StateLost):
    """The queue was in use by a loader, but its ledger is missing."""


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
