"""What a loader tells of itself: to the metrics, and to whoever asks its server. Nothing here decides anything.

The loader calls `planned`, `committed`, … in its own thread; answers are made in others, from values. Where a commit's
dead letters are looked at for their reasons, that is a small query in the loader's thread, at most one a minute, and
only while somebody may see the answer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from buffer.clock import Clock
from buffer.manifest import Manifest
from buffer.store.base import Store
from buffer_delta import metrics
from buffer_delta.config import LoaderConfig
from buffer_delta.delta.state import NOTHING, Commit
from buffer_delta.load.progress import Progress
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.metrics import Readings
from buffer_delta.serve.facts import LoaderFacts, Recorder, TableFacts
from buffer_delta.serve.readings import readings_of
from buffer_delta.serve.status import Limits, Status
from buffer_delta.serve.watch import Watch

if TYPE_CHECKING:
    from buffer_delta.serve.server import StatusServer

log = logging.getLogger(__name__)

REASONS_EVERY_S = 60.0

Reasons = Callable[[int, int], Mapping[str, int]]
"""Why the dead letters of a range are ones: reason -> how many."""


class Telling:
    """One loader's facts. `facts`, `known_manifest`, `readings` and `status` may be called from any thread."""

    def __init__(
        self, config: LoaderConfig, store: Store, clock: Clock, protocol: LoadProtocol, reasons: Reasons
    ) -> None:
        self._config = config
        self._store = store
        self._queue = f"{store.url} {config.manifest_path}"
        """As in `Status.name`: the label of counters and gauges."""
        self._clock = clock
        self._protocol = protocol
        self._reasons = reasons
        self._reasons_s = -math.inf
        self._recorder = Recorder(clock, dead_letter_table=config.dead_letters)
        # Twice: waiting for the cadence is no fault, and the commit after it takes its time.
        stuck_s = max(config.serve_stuck_s, 2 * config.longest_wait_s())
        self._limits = Limits(stuck_s=stuck_s, max_lag_s=config.serve_max_lag_s)
        unwatched = Limits(self._limits.stuck_s, self._limits.max_lag_s, look_s=math.inf)
        self._watch = Watch(store, config, loader=self, limits=unwatched, with_objects=False, clock=clock)
        """Never started: without a server the loader's own looks are all there is."""
        self.server: StatusServer | None = None
        self._last_known: Manifest | None = None

    # Asked

    def facts(self) -> LoaderFacts:
        return self._recorder.facts()

    def known_manifest(self) -> Manifest | None:
        consumer = self._protocol.consumer
        return consumer.known() if consumer is not None else self._last_known

    def readings(self) -> Readings | None:
        """Without a server; with one, that one answers, which looks further."""
        if self.server is not None or self.facts().has_ended:
            return None
        return readings_of(self._watch.status())

    def status(self) -> Status:
        return self.server.status() if self.server is not None else self._watch.status()

    # Told

    def begin(self) -> None:
        """Before anything is claimed. Raises InvalidConfig if it cannot serve where it should."""
        config = self._config
        if config.serve is not None and self.server is None:
            from buffer_delta.serve.server import StatusServer

            self.server = StatusServer(
                config.serve,
                self._store,
                config,
                loader=self,
                limits=self._limits,
                show_records=config.serve_show_records,
                clock=self._clock,
            )
            self.server.start()
            log.info("status, health and metrics at %s", self.server.url)
        # After the server: its reader counts from when it is there.
        metrics.begin(self._queue, (name for name in config.tables() if name != config.dead_letters))
        metrics.watch(self)

    def opened(self) -> None:
        self._recorder.opened(self._protocol.app_id, self._protocol.epoch, self._tables())

    def reached(self, step: str) -> None:
        plan = self._protocol.plan
        if step == "planned" and plan is not None:
            self._recorder.planned(plan.first, plan.last, plan.attempts)

    def waiting(self) -> None:
        self._recorder.waiting()

    def failed(self, error: str) -> None:
        metrics.retries.add(1, {"queue": self._queue})
        self._recorder.failed(error)

    def committed(self, progress: Progress, commits: Mapping[str, Commit]) -> None:
        labels = {"queue": self._queue}
        for name, commit in commits.items():
            if name != self._config.dead_letters:
                metrics.rows.add(commit.rows, {**labels, "table": name})
        metrics.commits.add(1, labels)
        metrics.bytes_loaded.add(progress.bytes, labels)
        metrics.dead_letters.add(progress.dead_letters, labels)
        metrics.commit_duration_seconds.record(progress.seconds, labels)
        self._recorder.committed(progress, self._tables())
        if progress.dead_letters and self.server is not None:
            self._look_at_reasons(progress)

    def line(self, progress: Progress) -> dict[str, Any]:
        """The facts of a commit's line in the log: those of the metrics."""
        facts = self.facts()
        return {
            "queue": self._queue,
            "tables": {table.table: table.position for table in facts.tables},
            "epoch": facts.epoch,
            **progress.to_dict(),
            "commits_total": facts.commits,
            "rows_total": facts.rows,
            "bytes_total": facts.bytes,
            "dead_letters_total": facts.dead_letters,
            "retries_total": facts.retries,
        }

    def fenced(self, error: BaseException) -> None:
        metrics.fenced.add(1, {"queue": self._queue})
        self.ended(error)

    def ended(self, error: BaseException | None, said: str = "") -> None:
        self._last_known = self.known_manifest()  # the consumer goes with the loader; what it saw is still news
        self._recorder.ended(error, said)

    def close(self) -> None:
        self.ended(None)
        metrics.forget(self)
        if self.server is not None:
            self.server.close()
            self.server = None

    def _look_at_reasons(self, progress: Progress) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._reasons_s < REASONS_EVERY_S:
            return
        self._reasons_s = now_s
        try:
            self._recorder.set_aside(self._reasons(progress.first, progress.last))
        except Exception as error:  # noqa: BLE001 - a page without reasons is no reason to stop a loader
            log.warning("could not look at the dead letters' reasons: %s", error)

    def _tables(self) -> list[TableFacts]:
        return [
            TableFacts(name, None if seen.position == NOTHING else seen.position, seen.version)
            for name, seen in self._protocol.tables().items()
        ]
