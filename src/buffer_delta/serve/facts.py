"""What a loader says of itself: a value, and the recorder that the loader tells as it goes.

The recorder is told from the loader's thread and asked from others, so it holds a lock for as long as it takes to copy
a few fields. It never calls anything while it does: a page that is looked at cannot hold up a commit.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from buffer.clock import Clock
from buffer.errors import Fenced
from buffer_delta.errors import Blocked

Phase = Literal["starting", "loading", "waiting", "retrying", "fenced", "blocked", "failed", "stopped"]
"""What a loader is doing: `waiting` for entries, `retrying` a range after a failure; the last four have ended."""

COMMITS_KEPT = 20  # on the page; the table's own history has all of them
ERROR_CHARS_MAX = 500


class CommitLike(Protocol):
    """What `Progress` tells of one commit."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """One range that is in every table."""

    time_ms: int
    first: int
    last: int
    rows: int
    dead_letters: int
    bytes: int
    seconds: float
    lag_batches: int
    lag_seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as the loader last saw it."""

    table: str
    position: int | None
    """The last sequence it holds; None if it has loaded nothing."""
    version: int | None
    """Delta's; None if there is no such table yet."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A loader at one moment."""

    phase: Phase = "starting"
    phase_seconds: float = 0.0
    started_ms: int = 0
    app_id: str | None = None
    epoch: int | None = None
    error: str | None = None
    """Why it failed last; None once a commit went through."""
    retries: int = 0
    """Attempts that failed, since it started."""
    plan_first: int | None = None
    plan_last: int | None = None
    plan_attempts: int = 0
    """Of the range in hand, by whichever loader; 0 if there is none."""
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    seconds_since_commit: float | None = None
    """None before the first one."""
    seconds_without_commit: float = 0.0
    """Since the last commit, or since it started."""
    last_commits: tuple[CommitFacts, ...] = ()
    """The newest last."""
    tables: tuple[TableFacts, ...] = ()
    dead_letter_table: str | None = None
    dead_letter_reasons: Mapping[str, int] = field(default_factory=dict)
    """Of the newest ones that were looked at: how often which reason."""

    @property
    def has_ended(self) -> bool:
        return self.phase in ("fenced", "blocked", "failed", "stopped")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Recorder:
    """What happened so far. Told by the loader, asked by anybody."""

    def __init__(self, clock: Clock, *, dead_letter_table: str | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._facts = LoaderFacts(started_ms=clock.now_ms(), dead_letter_table=dead_letter_table)
        self._started_s = self._phase_s = clock.monotonic_s()
        self._commit_s: float | None = None
        self._commits: deque[CommitFacts] = deque(maxlen=COMMITS_KEPT)

    def facts(self) -> LoaderFacts:
        now_s = self._clock.monotonic_s()
        with self._lock:
            since = None if self._commit_s is None else now_s - self._commit_s
            return dataclasses.replace(
                self._facts,
                phase_seconds=now_s - self._phase_s,
                seconds_since_commit=since,
                seconds_without_commit=now_s - self._started_s if since is None else since,
                last_commits=tuple(self._commits),
            )

    # Told by the loader

    def opened(self, app_id: str, epoch: int, tables: Iterable[TableFacts]) -> None:
        self._change("waiting", app_id=app_id, epoch=epoch, tables=tuple(tables))

    def planned(self, first: int, last: int, attempts: int) -> None:
        """A range is in hand."""
        self._change("loading", plan_first=first, plan_last=last, plan_attempts=attempts)

    def waiting(self) -> None:
        """There is nothing to load."""
        self._change("waiting", plan_first=None, plan_last=None, plan_attempts=0)

    def committed(self, done: CommitLike, tables: Iterable[TableFacts]) -> None:
        said = done.to_dict()
        names = {f.name for f in dataclasses.fields(CommitFacts)}
        commit = CommitFacts(time_ms=self._clock.now_ms(), **{k: v for k, v in said.items() if k in names})
        facts = self._facts  # only this thread changes it
        with self._lock:
            self._commit_s = self._clock.monotonic_s()
            self._commits.append(commit)
        self._change(
            "waiting",
            error=None,
            plan_first=None,
            plan_last=None,
            plan_attempts=0,
            commits=facts.commits + 1,
            rows=facts.rows + commit.rows,
            bytes=facts.bytes + commit.bytes,
            dead_letters=facts.dead_letters + commit.dead_letters,
            tables=tuple(tables),
        )

    def set_aside(self, reasons: Mapping[str, int]) -> None:
        """Why the newest dead letters are ones."""
        self._change(None, dead_letter_reasons=dict(reasons))

    def failed(self, error: str) -> None:
        """The range failed and will be tried again."""
        self._change("retrying", error=error[:ERROR_CHARS_MAX], retries=self._facts.retries + 1)

    def ended(self, error: BaseException | None, said: str = "") -> None:
        """The loader has stopped: asked to, or by an error. What was said first stands."""
        if self._facts.has_ended:
            return
        if error is None:
            self._change("stopped")
            return
        phase: Phase = "fenced" if isinstance(error, Fenced) else "blocked" if isinstance(error, Blocked) else "failed"
        self._change(phase, error=(said or str(error))[:ERROR_CHARS_MAX])

    def _change(self, phase: Phase | None, **changes: Any) -> None:
        with self._lock:
            if phase is not None and phase != self._facts.phase:
                self._phase_s = self._clock.monotonic_s()
                changes["phase"] = phase
            self._facts = dataclasses.replace(self._facts, **changes)
