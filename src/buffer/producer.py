"""The producer: takes entries from any thread, and tells each caller when they are durable.

The threads (`_producer_engine`) are a shell around two parts that work without any: `batching.Intake` (which calls
form a batch, who must wait) and `commit.Committer` (upload, append).

    callers ──produce──▶ Intake ──▶ upload threads ──▶ one appender ──▶ watchers
                           ▲
                         timer (closes a batch `flush_interval_ms` after its first entry, under any load)

- Threads: every method of a `Producer` may be called from many threads at once. Entries of one thread stay in
  the order of its calls; the queue has them in the order in which the calls were accepted.
- Fork: a producer belongs to the process that made it. In a child its calls raise `Closed` and its unsettled
  handles fail; `close()` there does nothing. Make a new producer after the fork.
- Exit without `close()`: the threads are daemons and hold nothing up. What no handle said durable may be lost.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, Self

from buffer._producer_engine import ProducerEngine, unclosed
from buffer.batching import Entries, check_call
from buffer.clock import Clock, SystemClock
from buffer.config import ProducerConfig
from buffer.durability import DurabilityWatcher, Durable, WriteHandle
from buffer.errors import BufferQueueError

__all__ = ["DurabilityWatcher", "Durable", "Producer", "WriteHandle"]


class Producer:
    """Puts entries into a queue. Use it as a context manager, or call `close()`.

        with Producer(ProducerConfig(store="s3://bucket/path")) as producer:
            handle = producer.produce([b"one", b"two"], metadata=b"from sensor 7")
            handle.watcher.await_durable()

    A batch that cannot be made durable fails its own handles and nothing else: later calls are tried anew, so a
    store that comes back is used again. After StorageError, ContentionError or InvalidInput the entries are surely
    not in the queue: produce them again. After AppendOutcomeUnknown they may be; after StateLost or CorruptData
    the queue itself needs an operator. Look into it before producing the same entries again.
    """

    def __init__(self, config: ProducerConfig, *, clock: Clock | None = None) -> None:
        """Opens the store, but writes nothing to it before there is something to flush."""
        self.config = config
        self._max_batch_bytes = config.max_batch_bytes
        self._engine = ProducerEngine(config, clock or SystemClock())
        self._engine.start()

    @classmethod
    def open(cls, **settings: Any) -> Self:
        """A producer from the settings of `ProducerConfig`: `Producer.open(store="./queue")`."""
        return cls(ProducerConfig(**settings))

    def produce(self, entries: Entries, metadata: bytes = b"") -> WriteHandle:
        """Accept entries: a list of bytes, or an Arrow array of type binary or large_binary.

        They go into one batch together, in this order, with one metadata item. Returns as soon as they are
        buffered; blocks while `max_buffered_bytes` or `max_buffered_inputs` is reached. Raises InvalidInput for
        no entries, wrong types, or more than `max_batch_bytes`, and Closed; then nothing was accepted.
        """
        return self._engine.accept(check_call(entries, metadata, self._max_batch_bytes), metadata)

    async def produce_async(self, entries: Entries, metadata: bytes = b"") -> WriteHandle:
        """Like `produce`, but waits for room without blocking the event loop. If cancelled, nothing was accepted.

        It returns when the entries are buffered; `await` the handle to know them durable.
        """
        return await self._engine.accept_async(check_call(entries, metadata, self._max_batch_bytes), metadata)

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
        if error is None:
            self.close()
            return
        try:
            self.close()
        except BufferQueueError as failure:  # must not hide the error that ended the block
            error.add_note(f"closing the producer failed as well: {type(failure).__name__}: {failure}")

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # missing if __init__ failed
        if engine is not None and engine.abandon():
            warnings.warn(unclosed(repr(self)), ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        return f"Producer({self._engine.url!r}, manifest_path={self.config.manifest_path!r})"
