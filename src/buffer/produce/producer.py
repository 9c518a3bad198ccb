"""The producer: takes entries from any thread, and tells each caller when they are durable.

The threads (`engine.py`) are a shell around two parts that work without any: `Intake` (which calls form a batch, who
must wait) and `Committer` (upload, append).

    callers ──produce──▶ Intake ──▶ upload threads ──▶ one appender ──▶ watchers
                           ▲
                         timer (closes a batch `flush_interval_ms` after its first entry, under any load)

- Threads: every method of a `Producer` may be called from many threads at once. Entries of one thread stay in
  the order of its calls; the queue has them in the order in which the calls were accepted.
- Signals: a handler may call `flush` and `close`. If it has interrupted a call of the same producer, they return at
  once and are done as soon as that call goes on, before it returns or raises; see `engine.py`. A `produce` that
  interrupts a call raises InvalidInput: set a flag, and produce when that has returned.
- Fork: a producer belongs to the process that made it. In a child its calls raise `Closed` and its unsettled
  handles fail; `close()` there does nothing. Make a new producer after the fork.
- Exit without `close()`: the threads are daemons and hold nothing up. What no handle said durable may be lost.
"""

from __future__ import annotations

import asyncio
import warnings
from types import TracebackType
from typing import Any, Self

from buffer.clock import Clock, SystemClock
from buffer.config import ProducerConfig
from buffer.errors import InvalidInput
from buffer.marks import check_client_seq
from buffer.produce.client_seqs import ClientSeqs
from buffer.produce.durability import DurabilityWatcher, Durable, WriteHandle
from buffer.produce.engine import ProducerEngine, unclosed
from buffer.produce.intake import Entries, check_call
from buffer.stopping import close_after

__all__ = ["DurabilityWatcher", "Durable", "Producer", "WriteHandle"]


class Producer:
    """Puts entries into a queue. Use it as a context manager, or call `close()`.

        with Producer(ProducerConfig(store="s3://bucket/path")) as producer:
            handle = producer.produce([b"one", b"two"], metadata=b"from sensor 7")
            handle.watcher.await_durable()

    In asyncio: `async with Producer(…) as producer`, `produce_async`, `await handle`.

    A batch that cannot be made durable fails its own handles and nothing else: later calls are tried anew, so a
    store that comes back is used again. After StorageError, ContentionError or InvalidInput the entries are surely
    not in the queue: produce them again. After AppendOutcomeUnknown they may be; after StateLost or CorruptData
    the queue itself needs an operator. Look into it before producing the same entries again.

    **With a client id** nobody needs to look: every call has a number, `client_seq`, and the queue knows the largest
    one that it holds. A call that is repeated under its number is in the queue once, whatever happened in between.

        with Producer(config, client_id="sensor-7") as producer:
            for client_seq in range(producer.next_client_seq, len(calls)):
                producer.produce(calls[client_seq], client_seq=client_seq)

    - Numbers grow with every call; gaps are fine. Without one, a call gets the next.
    - A replay fails its handle with IdempotencyConflict, which says how far the client is in the queue.
    - After a call that failed, the producer accepts no more (ProducerStopped). Open a new one, and repeat all calls
      that were not durable, in order and under the same numbers. Only then does a conflict mean that a call is in the
      queue: had later calls gone on, they would have passed over the one that failed.
    - One failure is not cured by repeating it: BatchCollected, after an append that landed a day too late. The call's
      mark is in the queue and its batch is gone, so produce its entries again under a new number, or without giving
      one. A replay of that call says the same while its entry waits, whoever makes it: a conflict comes after a look.
      AppendOutcomeUnknown says that nobody could look: repeat the call later.
    - One producer at a time uses a client id. Of two, the one that is behind gets the conflict, and stops.
    """

    def __init__(self, config: ProducerConfig, *, client_id: str | None = None, clock: Clock | None = None) -> None:
        """Opens the store, but writes nothing to it before there is something to flush.

        With a client id it looks how far that client is in the queue, and makes the queue's ledger ready to keep it.
        Raises InvalidInput for an id that does not fit, MarksLost, and the store's errors.
        """
        self.config = config
        self._max_batch_bytes = config.max_batch_bytes
        self._engine = ProducerEngine(config, clock or SystemClock(), client_id)
        self._engine.start()

    @classmethod
    def open(cls, *, client_id: str | None = None, **settings: Any) -> Self:
        """A producer from the settings of `ProducerConfig`: `Producer.open(store="./queue")`."""
        return cls(ProducerConfig(**settings), client_id=client_id)

    @property
    def next_client_seq(self) -> int:
        """The number that the next call gets unless it gives one: after opening, the first that is not in the queue.

        Raises InvalidInput without a client id. Whoever goes on there takes all before it for done. So where the
        client's newest batch is older than a day it looks at that first, which may take a minute. Raises BatchCollected
        while the queue has that entry without its batch, AppendOutcomeUnknown if nobody can see it: ask again.
        """
        self._client()
        return self._engine.next_client_seq()

    def produce(self, entries: Entries, metadata: bytes = b"", client_seq: int | range | None = None) -> WriteHandle:
        """Accept entries: a list of bytes, or an Arrow array of type binary or large_binary.

        They go into one batch together, in this order, with one metadata item. Returns as soon as they are
        buffered; blocks while `max_buffered_bytes` or `max_buffered_inputs` is reached. Raises InvalidInput for
        no entries, wrong types, or more than `max_batch_bytes`, QueueFull where `max_depth` is set, here or for the
        queue (`LeaseConfig`), and Closed; then nothing was accepted.

        `client_seq` is the call's number, for a producer with a client id: larger than the ones before it. A range
        gives the call several, say one for each entry: then `next_client_seq` is a place among the entries, and calls
        may be cut differently when they are repeated. Calls that give their numbers should come one after the other.
        Raises ProducerStopped after a call that failed.
        """
        if client_seq is not None:
            self._check_number(client_seq)
        engine = self._engine
        if not engine.depth.is_uncapped:  # a call costs a microsecond or two, so it is not even asked
            engine.check_depth()
        return engine.accept(check_call(entries, metadata, self._max_batch_bytes), metadata, client_seq)

    async def produce_async(
        self, entries: Entries, metadata: bytes = b"", client_seq: int | range | None = None
    ) -> WriteHandle:
        """Like `produce`, but waits for room without blocking the event loop. If cancelled, nothing was accepted.

        It returns when the entries are buffered; `await` the handle to know them durable.
        """
        if client_seq is not None:
            self._check_number(client_seq)
        if not self._engine.depth.is_open():
            await asyncio.to_thread(self._engine.check_depth)
        call = check_call(entries, metadata, self._max_batch_bytes)
        return await self._engine.accept_async(call, metadata, client_seq)

    def _check_number(self, client_seq: int | range) -> None:
        self._client()
        if isinstance(client_seq, range):
            if client_seq.step != 1 or not client_seq:
                raise InvalidInput(f"client_seq {client_seq} must be a range of at least one number, without steps")
            check_client_seq(client_seq[0])
            client_seq = client_seq[-1]
        check_client_seq(client_seq)

    def _client(self) -> ClientSeqs:
        if self._engine.client is None:
            raise InvalidInput("only a producer with a client id numbers its calls: Producer(config, client_id=…)")
        return self._engine.client

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything produced before is durable; what is buffered does not wait for its triggers.

        Raises the error of the first batch that failed, with the number of such batches in its message: one that
        this call waited for, or one that no `flush` or `close` has reported yet. Raises TimeoutError after
        `timeout` seconds (nothing is cancelled), and Closed.
        """
        self._engine.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more, flush, and end the threads. Calling it again does nothing.

        Raises like `flush` for what could not be made durable; the producer is closed even so. After
        TimeoutError the flush goes on in the background: call again to wait on.
        """
        self._engine.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close_after(error, self.close, "producer")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Like leaving `with`, but the event loop goes on meanwhile. If cancelled, closing goes on behind it."""
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # missing if __init__ failed
        if engine is not None and engine.abandon():
            warnings.warn(unclosed(repr(self)), ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        return f"Producer({self._engine.url!r}, manifest_path={self.config.manifest_path!r})"
