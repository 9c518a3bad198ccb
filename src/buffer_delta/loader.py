"""The loader: a queue into Delta tables, exactly once. The only file that knows all the parts.

    Loader(spark, LoaderConfig(store="s3://bucket/buffer", table="events", format="json")).run()

The driver owns the manifest, the ledger and the commits; executors fetch and decode (`work.py`). The order of
steps, and what a crash between them leaves behind, is `protocol.py`.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from buffer.clock import Clock, SystemClock
from buffer.errors import BufferQueueError, Closed, ContentionError, CorruptBatch, Fenced, StorageError
from buffer.model import BatchDescriptor
from buffer.store.open import open_store
from buffer_delta import checks, metrics
from buffer_delta.config import LoaderConfig
from buffer_delta.contracts import Done, Rules
from buffer_delta.formats import resolve_format
from buffer_delta.grouping import choose_count
from buffer_delta.progress import Progress, html_table
from buffer_delta.protocol import LoadProtocol
from buffer_delta.table import DeltaTarget
from buffer_delta.work import SparkWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

RETRY_FIRST_S = 0.5


class Loader:
    """Loads one queue into its tables. Use it from one thread; `stop()` may come from any.

    `on_progress` is called after every commit, `reached` after every step of the protocol (see `protocol.py`).
    """

    def __init__(
        self,
        spark: SparkSession,
        config: LoaderConfig,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        reached: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.last_progress: Progress | None = None
        self._clock = clock or SystemClock()
        self._on_progress = on_progress
        self._store = open_store(config.store, **config.store_options)
        self._targets = self._make_targets(spark)
        self._work = SparkWork(spark, self._store, config, self._targets[0], self._clock)
        consumer = config.consumer().replace(store=self._store, store_options={})
        rules = Rules(
            app_id=config.app_id,
            adopt=config.adopt,
            accept_gaps=config.on_gap == "skip",
            max_delivery_attempts=config.max_delivery_attempts,
            dlq_strategy=config.strategy(),  # type: ignore[arg-type]  # LoaderConfig has checked the choice
        )
        watched = {"reached": reached} if reached else {}
        self._protocol = LoadProtocol(consumer, self._store, self._targets, self._work, self._clock, rules, **watched)
        self._opened = False
        self._closed = False
        self._stop = threading.Event()

    def _make_targets(self, spark: SparkSession) -> list[DeltaTarget]:
        config = self.config
        evolving = config.merge_schema or resolve_format(config.format).evolving
        targets = [
            DeltaTarget(
                spark,
                name,
                partition_by=config.partition_by,
                cluster_by=config.cluster_by,
                properties=config.table_properties,
                merge_schema=evolving,
            )
            for name in (config.table, *config.routes.values())
        ]
        if config.dead_letters:
            targets.append(DeltaTarget(spark, config.dead_letters))
        return targets

    # Running

    def open(self) -> None:
        """Check everything, claim the queue. Called by `run` and `run_once`; a second call does nothing."""
        if self._closed:
            raise Closed("this loader was closed; make a new one")
        if self._opened:
            return
        for target in self._targets:
            for warning in target.preflight():
                log.warning("%s", warning)
        checks.different_tables({target.name: target.place() for target in self._targets})
        with self._counting_fences():
            self._protocol.open()
        self._opened = True
        log.info(
            "loading %s as %s, epoch %d, from sequence %d on",
            self.config.manifest_path,
            self._protocol.app_id,
            self._protocol.epoch,
            self._protocol.committed + 1,
        )

    def run_once(self) -> Progress | None:
        """Load one range, with retries; None if the queue holds nothing new."""
        self.open()
        with self._counting_fences():
            return self._step_with_retries()

    def run(self, *, available_now: bool = False, handle_signals: bool = True) -> Progress | None:
        """Load until `stop()`, or, with `available_now`, all that is in the queue at this moment.

        SIGTERM and SIGINT (in the main thread) finish the commit in hand, ack it, and return; a second one stops
        at once, which is as safe as a crash. Returns the last progress; None if there was nothing to load.
        """
        try:
            with self._signals(handle_signals):
                self.open()
                end = self._queue_end() if available_now else None
                while not self._stop.is_set() and (end is None or self._protocol.committed < end):
                    if self.run_once() is None:
                        if end is not None:
                            break
                        self._stop.wait(self.config.trigger_interval_s)
        finally:
            self.close()
        return self.last_progress

    def stop(self) -> None:
        """Ask `run` to return after the commit in hand. Safe from any thread and from signal handlers."""
        self._stop.set()

    def close(self) -> None:
        """Give the queue back. What was not committed stays in it."""
        self._closed = True
        self._protocol.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _queue_end(self) -> int:
        assert self._protocol.consumer is not None
        return self._protocol.consumer.manifest().next_sequence - 1

    def _step_with_retries(self) -> Progress | None:
        pause_s = RETRY_FIRST_S
        for attempt in range(1, self.config.retry_attempts + 1):
            started = self._clock.monotonic_s()
            try:
                done = self._protocol.step(self._choose, self.config.max_batches_per_commit)
            except Exception as error:
                if attempt == self.config.retry_attempts or not _worth_retrying(error):
                    raise
                metrics.retries.add(1)
                log.warning("the range failed, trying again in %.1f s: %s", pause_s, _brief(error))
                if self._stop.wait(pause_s):
                    raise
                pause_s = min(self.config.retry_max_s, pause_s * 2)
                continue
            return self._report(done, self._clock.monotonic_s() - started) if done else None
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _choose(self, descriptors: Sequence[BatchDescriptor]) -> int:
        sizes = self._work.look_up_sizes(descriptors)
        return choose_count(descriptors, sizes, self.config.max_bytes_per_commit, self.config.max_batches_per_commit)

    # Telling

    def _report(self, done: Done, seconds: float) -> Progress:
        lag_batches, lag_seconds = self._lag()
        rows = {name: commit for name, commit in done.commits.items() if name != self.config.dead_letters}
        dead = done.commits.get(self.config.dead_letters or "")
        progress = Progress(
            first=done.plan.first,
            last=done.plan.last,
            rows=sum(commit.rows for commit in rows.values()),
            dead_letters=dead.rows if dead else 0,
            bytes=self._bytes_of(done.descriptors),
            files=sum(commit.files for commit in done.commits.values()),
            seconds=seconds,
            lag_batches=lag_batches,
            lag_seconds=lag_seconds,
            attempts=done.plan.attempts,
        )
        self.last_progress = progress
        metrics.commits.add(1)
        metrics.rows.add(progress.rows)
        metrics.bytes_loaded.add(progress.bytes)
        metrics.dead_letters.add(progress.dead_letters)
        metrics.commit_duration_seconds.record(seconds)
        metrics.lag_batches.set(progress.lag_batches)
        metrics.lag_seconds.set(progress.lag_seconds)
        log.info("%s", progress)
        if self._on_progress:
            self._on_progress(progress)
        return progress

    def _bytes_of(self, descriptors: Sequence[BatchDescriptor]) -> int:
        try:
            return sum(self._work.look_up_sizes(descriptors).values())
        except StorageError as error:
            log.warning("no size, the range is loaded all the same: %s", error)
            return 0

    def _lag(self) -> tuple[int, float]:
        """What is left in the queue, and how old it is. If the store does not answer: as it was at the last commit."""
        consumer = self._protocol.consumer
        assert consumer is not None
        try:
            return len(consumer), consumer.lag_seconds()
        except StorageError as error:
            log.warning("no new lag, the range is loaded all the same: %s", error)
            known = self.last_progress
            return (known.lag_batches, known.lag_seconds) if known else (0, 0.0)

    @contextmanager
    def _counting_fences(self) -> Iterator[None]:
        try:
            yield
        except Fenced:
            metrics.fenced.add(1)
            raise

    @contextmanager
    def _signals(self, handle: bool) -> Iterator[None]:
        if not handle or threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt(f"second {signal.Signals(number).name}")
            log.warning("%s: finishing the commit in hand; once more stops at once", signal.Signals(number).name)
            self.stop()

        earlier = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def status(self) -> dict[str, Any]:
        """Where this loader stands, for people and notebooks."""
        consumer = self._protocol.consumer
        return {
            "queue": f"{self._store.url} {self.config.manifest_path}",
            "tables": ", ".join(self.config.tables()),
            "app_id": self._protocol.app_id or self.config.app_id or "not bound yet",
            "epoch": consumer.epoch if consumer else None,
            "committed": self._protocol.committed if self._opened else None,
            "last progress": str(self.last_progress) if self.last_progress else None,
            "state": "closed" if self._closed else "open" if self._opened else "not opened",
        }

    def __repr__(self) -> str:
        return f"Loader({', '.join(f'{k}={v!r}' for k, v in self.status().items())})"

    def _repr_html_(self) -> str:
        return html_table("Loader", self.status())


def _brief(error: Exception) -> str:
    """One line of an error: of a failed Spark job, what our own code on the executor said, if it did."""
    lines = str(error).splitlines() or [repr(error)]
    ours = [line for line in lines if line.startswith("buffer.errors.")]
    return ours[-1] if ours else lines[0]


def _worth_retrying(error: Exception) -> bool:
    """Spark's and the store's troubles pass, and bad batches are dealt with after enough attempts.

    What an operator must decide, and what the user's own code or query did wrong, does not pass by itself.
    """
    if isinstance(error, BufferQueueError):
        return isinstance(error, StorageError | ContentionError | CorruptBatch)
    return not isinstance(error, AnalysisException)
