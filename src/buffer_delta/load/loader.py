"""The loader: a queue into Delta tables, exactly once. The only file that knows all the parts.

    Loader(spark, LoaderConfig(store="s3://bucket/buffer", table="events", format="json")).run()

The driver owns the manifest, the ledger and the commits; executors fetch and decode (`work.py`). The order of
steps, and what a crash between them leaves behind, is `protocol.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from buffer.clock import Clock, SystemClock
from buffer.errors import BufferQueueError, Closed, CorruptBatch, Fenced, StorageError
from buffer.gc.short_run import ShortRun
from buffer.inspect.status import read_ledger
from buffer.model import BatchDescriptor
from buffer.stopping import StopFlag
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.decode.grouping import choose_count
from buffer_delta.delta.places import one_spelling
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.errors import Blocked
from buffer_delta.formats import resolve_format
from buffer_delta.load import checks
from buffer_delta.load.cadence import Cadence, Pace
from buffer_delta.load.ports import Done, Rules
from buffer_delta.load.progress import Progress, Total, html_table
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.load.retry import PASSING, range_backoff
from buffer_delta.load.signals import stopped_by_signals
from buffer_delta.load.telling import Telling
from buffer_delta.load.upkeep import Upkeep
from buffer_delta.load.work import SparkWork
from buffer_delta.serve.status import Status
from buffer_delta.spark.blame import brief

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

REASONS_MAX = 10  # of dead letters, on the status page


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
        self.total = Total()
        """All that this loader has done so far."""
        self._clock = clock or SystemClock()
        self._on_progress = on_progress
        self._store = open_store(config.store, **config.store_options)
        self._evolving = resolve_format(config.format).evolving
        self._targets = self._make_targets(spark)
        self._work = SparkWork(spark, self._store, config, self._targets, self._clock)
        self._upkeep = Upkeep(
            {target.name: target.upkeep for target in self._targets},
            compact_every=config.compact_every_commits,
            target_bytes=config.target_file_bytes,
        )
        consumer = config.consumer().replace(store=self._store, store_options={})
        rules = Rules(
            app_id=config.app_id,
            adopt=config.adopt,
            accept_gaps=config.on_gap == "skip",
            max_delivery_attempts=config.max_delivery_attempts,
            dlq_strategy=config.strategy(),  # type: ignore[arg-type]  # LoaderConfig has checked the choice
            has_dead_letters=config.dead_letters is not None,
        )

        def told(step: str) -> None:
            self._telling.reached(step)
            if reached:
                reached(step)

        self._protocol = LoadProtocol(
            consumer,
            self._store,
            self._targets,
            self._work,
            self._clock,
            rules,
            reached=told,
            open_table=lambda name: DeltaTarget(spark, name),
        )
        self._telling = Telling(config, self._store, self._clock, self._protocol, self._reasons_of)
        self._opened = False
        self._closed = False
        self._stop = StopFlag()

    def _make_targets(self, spark: SparkSession) -> list[DeltaTarget]:
        config = self.config
        evolving = config.merge_schema or resolve_format(config.format).evolving
        files: dict[str, Any] = {
            "writer": config.writer,
            "table_options": config.table_options,
            "target_file_bytes": config.target_file_bytes,
        }
        targets = [
            DeltaTarget(
                spark,
                name,
                partition_by=config.partition_by,
                cluster_by=config.cluster_by,
                properties=config.table_properties,
                merge_schema=evolving,
                **files,
            )
            for name in (config.table, *config.routes.values())
        ]
        if config.dead_letters:
            # One that an earlier release made gets the columns that dead letters have today.
            targets.append(DeltaTarget(spark, config.dead_letters, merge_schema=True, **files))
        return targets

    # Running

    def open(self) -> None:
        """Check everything, claim the queue. Called by `run` and `run_once`; a second call does nothing."""
        if self._closed:
            raise Closed("this loader was closed; make a new one")
        if self._opened:
            return
        self._telling.begin()
        for target in self._targets:
            for warning in target.preflight():
                log.warning("%s", warning)
            target.check_writer()
            if self.config.compact_every_commits:
                target.check_compaction()
        checks.different_tables({target.name: one_spelling(target.location()) for target in self._targets})
        checks.lasting_tables([target.name for target in self._targets if target.ends_with_the_session()])
        occupants = {target.name: target.occupant() for target in self._targets}
        if any(occupants.values()) and (self.config.adopt or self._is_unbound()):  # else the queue knows its table
            checks.free_places(occupants)
        with self._counting_fences():
            self._protocol.open()
        self._opened = True
        self._telling.opened()
        log.info(
            "loading %s as %s, epoch %d, from sequence %d on",
            self.config.manifest_path,
            self._protocol.app_id,
            self._protocol.epoch,
            self._protocol.committed + 1,
        )

    def _is_unbound(self) -> bool:
        ledger = read_ledger(self._store, self.config.manifest_path)
        return ledger is None or ledger.is_unbound

    def run_once(self) -> Progress | None:
        """Load one range, with retries; None if the queue holds nothing new."""
        return self._load_next(None)

    def _load_next(self, pace: Pace | None) -> Progress | None:
        """… or, with a pace, nothing that is worth a commit yet."""
        self.open()
        with self._counting_fences():
            return self._step_with_retries(pace)

    def run(self, *, available_now: bool = False, handle_signals: bool = True) -> Progress | None:
        """Load until `stop()`, or, with `available_now`, all that is in the queue at this moment.

        SIGTERM and SIGINT (in the main thread) finish the commit in hand, ack it, and return; a second one stops
        at once, which is as safe as a crash. Returns the last progress; None if there was nothing to load. How often
        it commits is `commit_interval_s` and `min_commit_bytes`; with `available_now` nothing waits, and what the queue
        needs no more is deleted at the end, where `gc_enabled`.
        """
        try:
            with stopped_by_signals(self._stop, handle=handle_signals):
                if available_now:
                    self._load_available()
                else:
                    self._load_until_stopped()
        except Exception as error:
            self._linger(error)
            raise
        finally:
            self.close()
        return self.last_progress

    def _load_available(self) -> None:
        gc = ShortRun(self.config.gc(), store=self._store, clock=self._clock) if self.config.gc_enabled else None
        if gc is not None:
            gc.begin()  # before the claim, which is the change that the second look needs
        self.open()
        end = self._queue_end()
        while not self._stop.is_set() and self._protocol.committed < end:
            if self.run_once() is None:
                break
        if gc is not None and not self._stop.is_set():
            self.total = self.total.with_deleted(gc.end(self._protocol.epoch))

    def _load_until_stopped(self) -> None:
        config = self.config
        cadence = Cadence(config.interval_s(), config.min_commit_bytes, config.max_commit_wait_s)
        pace = Pace(cadence, self._clock.monotonic_s)
        while not self._stop.is_set():
            if self._load_next(pace) is None:
                self._stop.wait(pace.pause_s(config.trigger_interval_s))

    def stop(self) -> None:
        """Ask `run` to return after the commit in hand. Safe from any thread and from signal handlers."""
        self._stop.set()

    def close(self) -> None:
        """Give the queue back. What was not committed stays in it."""
        self._closed = True
        self._protocol.close()
        self._telling.close()
        self._upkeep.close()

    def _linger(self, error: Exception) -> None:
        """Go on serving for a moment, so that whoever asks can see why it ended. The queue is given back before."""
        self._telling.ended(error, brief(error))
        self._protocol.close()
        if self._telling.server is not None:
            self._stop.wait(self.config.serve_linger_s)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _queue_end(self) -> int:
        assert self._protocol.consumer is not None
        return self._protocol.consumer.manifest().next_sequence - 1

    def _step_with_retries(self, pace: Pace | None) -> Progress | None:
        backoff = range_backoff(attempts_max=self.config.retry_attempts, max_s=self.config.retry_max_s)
        pauses = backoff.pauses(self._clock.jitter)
        told = ""
        for attempt in range(1, backoff.attempts_max + 1):
            started = self._clock.monotonic_s()
            try:
                done = self._protocol.step(partial(self._choose, pace), self.config.max_batches_per_commit)
            except Exception as error:
                if attempt == backoff.attempts_max or not self._is_worth_retrying(error, attempt):
                    raise
                self._telling.failed(brief(error))
                pause_s = next(pauses)
                said = brief(error)
                # Once is enough; and a batch that cannot be decoded is told of when it is set aside, or blocks.
                is_corrupt = isinstance(error, CorruptBatch) or said.startswith("buffer.errors.CorruptBatch")
                is_news = said != told and not is_corrupt
                told = said
                log.log(
                    logging.WARNING if is_news else logging.INFO,
                    "the range failed, trying again in %.1f s: %s",
                    pause_s,
                    said,
                )
                if self._stop.wait(pause_s):
                    raise
                continue
            if done is None:
                self._telling.waiting()
                return None
            progress = self._report(done, self._clock.monotonic_s() - started)
            self._upkeep.after(done.commits)
            return progress
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _is_worth_retrying(self, error: Exception, attempt: int) -> bool:
        """Spark's and the store's troubles pass, and what fails every time is dealt with after enough attempts.

        What an operator must decide, and what the user's own code or query did wrong, does not pass by itself. Where
        columns follow the data, a query may be wrong because of one record: until that was searched for, it may pass.
        """
        if isinstance(error, BufferQueueError):
            return isinstance(error, PASSING)
        if isinstance(error, AnalysisException):
            return self._evolving and attempt <= self.config.max_delivery_attempts
        return True

    def _choose(self, pace: Pace | None, descriptors: Sequence[BatchDescriptor]) -> int:
        """How many of them to commit now; 0: none yet."""
        config = self.config
        sizes = self._work.sizes.look_up(descriptors)
        count = choose_count(descriptors, sizes, config.max_bytes_per_commit, config.max_batches_per_commit)
        if pace is None:
            return count
        assert self._protocol.consumer is not None
        stored_bytes = sum(sizes.values())
        is_full = (
            count < len(descriptors)
            or count >= config.max_batches_per_commit
            or stored_bytes >= config.max_bytes_per_commit
        )
        _, age_s = self._protocol.consumer.known_lag()
        return count if pace.is_due(is_full=is_full, stored_bytes=stored_bytes, age_s=age_s) else 0

    # Telling

    def _report(self, done: Done, seconds: float) -> Progress:
        assert self._protocol.consumer is not None
        lag_batches, lag_seconds = self._protocol.consumer.known_lag()  # the ack has just seen the queue
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
        self._telling.committed(progress, done.commits)
        self.total = self.total.plus(progress)
        log.info("%s", progress, extra={"event": "commit", "facts": self._telling.line(progress)})
        if self._on_progress:
            self._on_progress(progress)
        return progress

    def lag(self) -> tuple[int, float] | None:
        """Batches that are not loaded and the age of the oldest, as of the last look at the queue; None: not open.

        From any thread, and without a look: while a range fails again and again, its age is what grows.
        """
        consumer = self._protocol.consumer
        return consumer.known_lag() if consumer is not None else None

    def observe(self) -> Status:
        """Everything that is known of it now, as a value: state, reason, lag, plan, commits. From any thread."""
        return self._telling.status()

    @property
    def url(self) -> str | None:
        """Where it is served, while it is."""
        return self._telling.server.url if self._telling.server else None

    def _reasons_of(self, first: int, last: int) -> dict[str, int]:
        assert self.config.dead_letters is not None, "there are dead letters"
        frame = self._targets[-1].read()
        found = frame.where(frame["_sequence"].between(first, last)).groupBy("error").count()
        return {row["error"]: row["count"] for row in found.orderBy(found["count"].desc()).limit(REASONS_MAX).collect()}

    def _bytes_of(self, descriptors: Sequence[BatchDescriptor]) -> int:
        try:
            return sum(self._work.sizes.look_up(descriptors).values())
        except StorageError as error:
            log.warning("no size, the range is loaded all the same: %s", error)
            return 0
        finally:
            self._work.sizes.forget(descriptors)

    @contextmanager
    def _counting_fences(self) -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            self._telling.fenced(error)
            raise
        except Blocked as error:
            self._telling.ended(error)
            raise

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
