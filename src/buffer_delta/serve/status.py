"""Everything that is known of a queue and its loader at one moment, and what it amounts to. Pure.

There is one value, `Status`. The page, the JSON, the health checks, the metrics and `buffer-delta status` are views of
it, and its one `state` is decided here: so they cannot disagree.

    blocked      a range cannot be loaded; an operator decides (`buffer-delta unblock`)
    fenced       another loader has taken the queue over; this one has stopped, or will at its next write
    failed       the loader has stopped because of an error
    unreachable  the queue cannot be looked at
    stuck        entries wait, and nothing was committed, or taken by a worker, for longer than the limit
    behind       the oldest entry has waited for longer than the limit
    retrying     the range failed and is tried again, not for long yet
    loading      a range is under way
    waiting      entries wait, and nothing says yet that a loader should have taken them
    idle         everything is loaded
    starting     the loader has not claimed the queue yet
    stopped      the loader was asked to stop

A single look, like that of `buffer-delta status`, cannot tell whether the queue moves, only whether a range was tried
before. Where a watch has looked for long enough it can, without a loader in its process too.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from buffer.inspect.human import human_seconds, plural
from buffer.inspect.status import QueueStatus
from buffer.leases.values import LeaseStats
from buffer_delta.serve.facts import LoaderFacts

State = Literal[
    "blocked",
    "fenced",
    "failed",
    "unreachable",
    "stuck",
    "behind",
    "retrying",
    "loading",
    "waiting",
    "idle",
    "starting",
    "stopped",
]
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]  # the one list of them
UNHEALTHY: frozenset[State] = frozenset({"blocked", "fenced", "failed", "unreachable", "stuck", "behind"})
READY: frozenset[State] = frozenset(set(STATES) - UNHEALTHY - {"starting", "stopped"} | {"behind"})


STUCK_S = 600.0
UNSEEN_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is wrong."""

    stuck_s: float = STUCK_S
    """Entries wait and nothing was committed, or taken by a worker, for this long."""
    max_lag_s: float | None = None
    """The oldest entry has waited for this long. None: a backlog is no fault."""
    look_s: float = UNSEEN_S
    """The last successful look at the queue is this old."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How far one table is, next to its queue."""

    table: str
    exists: bool | None
    """None where nobody has looked."""
    committed: int | None
    """The last sequence that it got something from; None if there is none, or if nobody has looked."""
    lag_batches: int | None
    """Batches of the queue that it does not hold yet: what the main table has, all have."""
    problem: str | None = None
    """What keeps the next start of the loader from going on."""
    version: int | None = None
    """Delta's."""


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Producers that number their calls."""

    count: int
    lost: tuple[int, int] | None
    """Sequences that left the queue before anybody kept their marks."""
    newest: tuple[tuple[str, int, int], ...]
    """Client id, client_seq and sequence of those that wrote last."""


@dataclass(frozen=True, slots=True)
class Status:
    """One moment."""

    time_ms: int
    queue: QueueStatus | None
    """None if no look succeeded so far."""
    queue_problem: str | None = None
    """Why the last look failed."""
    queue_seconds: float = 0.0
    """How old the last successful look is; without one, since when looks fail."""
    still_seconds: float | None = None
    """How long nobody has been seen to take anything from the queue, though there was something to take. None: not
    watched."""
    loader: LoaderFacts | None = None
    """None where no loader is in this process."""
    tables: tuple[TableStatus, ...] = ()
    leases: LeaseStats | None = None
    clients: ClientFacts | None = None
    backlog_bytes: int | None = None
    """Stored bytes of the batches that wait; None if nobody has counted."""
    limits: Limits = field(default_factory=Limits)
    place: str | None = None
    """Store and manifest, also of a queue that no look has found."""

    # What it amounts to

    @property
    def state(self) -> State:
        return self._judged[0]

    @property
    def reason(self) -> str:
        """Why it is in this state, in one sentence."""
        return self._judged[1]

    @property
    def is_healthy(self) -> bool:
        return self.state not in UNHEALTHY

    @property
    def is_ready(self) -> bool:
        """Whether it does its work: the queue is claimed, or can be looked at."""
        return self.state in READY

    @property
    def needs_restart(self) -> bool:
        """Whether a supervisor's restart could help, and nothing else will."""
        return self.state == "stuck" and self.loader is not None

    @property
    def _judged(self) -> tuple[State, str]:
        return _ended(self) or _unseen(self) or _late(self) or _at_work(self)

    @property
    def lag_batches(self) -> int | None:
        if self.leases is not None:
            return self.leases.depth
        return None if self.queue is None else self.queue.length

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest entry that waits, now; 0 if none does."""
        return None if self.queue is None else self.queue.lag_seconds

    @property
    def is_ahead(self) -> bool:
        """Whether the oldest entry came in the future: its producer's clock, or unit, says nothing of its age."""
        oldest_ms = None if self.queue is None else self.queue.oldest_ingestion_ms
        return oldest_ms is not None and oldest_ms > self.time_ms

    @property
    def attempts(self) -> int:
        """At the range in hand; 0 if none is."""
        if self.loader is not None and (self.loader.plan_attempts or self.loader.phase == "waiting"):
            return self.loader.plan_attempts
        under_way = self.queue is not None and self.queue.plan is not None and self.queue.plan_state == "under way"
        return self.queue.plan.attempts if self.queue and self.queue.plan and under_way else 0

    @property
    def name(self) -> str | None:
        """The queue's, for people and for the metrics."""
        return self.place if self.queue is None else f"{self.queue.store} {self.queue.manifest}"

    # Views

    def health(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "healthy": self.is_healthy,
            "ready": self.is_ready,
            "reason": self.reason,
            "lag_seconds": self.lag_seconds,
            "lag_batches": self.lag_batches,
        }

    def to_dict(self) -> dict[str, Any]:
        """The same keys always: those of `buffer status --json`, and what is around the queue."""
        queue = self.queue.to_dict() if self.queue else dict.fromkeys(QUEUE_KEYS)
        return {
            **queue,
            **self.health(),
            "name": self.name,
            "time_ms": self.time_ms,
            "queue_problem": self.queue_problem,
            "queue_seconds": self.queue_seconds,
            "backlog_bytes": self.backlog_bytes,
            "attempts": self.attempts,
            "loader": self.loader.to_dict() if self.loader else None,
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "leases": dataclasses.asdict(self.leases) if self.leases else None,
            "clients": dataclasses.asdict(self.clients) if self.clients else None,
            "limits": dataclasses.asdict(self.limits),
        }


QUEUE_KEYS = (
    *("store", "manifest", "epoch", "first_sequence", "next_sequence", "last_acked", "length", "lag_seconds"),
    *("oldest_ingestion_ms", "newest_ingestion_ms", "manifest_bytes", "objects", "ledger", "plan", "blocked"),
)
"""Of `QueueStatus.to_dict`, for a queue that could not be looked at."""


# Judging: the first of these that has something to say decides


def _ended(status: Status) -> tuple[State, str] | None:
    """What only an operator, or nobody, can mend."""
    loader, blocked = status.loader, status.queue.blocked if status.queue else None
    if loader is not None and loader.phase == "fenced":
        return "fenced", loader.error or "another loader has taken the queue over"
    if blocked is not None:
        return "blocked", f"batches {blocked.first}..{blocked.last}: {blocked.reason}"
    if loader is None:
        return _held_up(status)
    if loader.phase == "blocked":
        return "blocked", loader.error or "a range cannot be loaded"
    if loader.phase == "failed":
        return "failed", loader.error or "the loader has stopped because of an error"
    if loader.phase == "stopped":
        return "stopped", "the loader was asked to stop"
    if loader.epoch is not None and status.queue is not None and status.queue.epoch > loader.epoch:
        return "fenced", f"epoch {status.queue.epoch} has taken the queue over from {loader.epoch}"
    return None


def _held_up(status: Status) -> tuple[State, str] | None:
    """Workers with leases: a batch that waits for an operator."""
    if status.leases is None or not status.leases.blocked:
        return None
    shown = ", ".join(map(str, status.leases.blocked_sequences[:5]))
    return "blocked", f"{plural(status.leases.blocked, 'batches')} left to an operator: {shown}"


def _unseen(status: Status) -> tuple[State, str] | None:
    if status.queue_seconds <= status.limits.look_s and (status.queue is not None or status.queue_problem is None):
        return None
    since = f"for {human_seconds(status.queue_seconds)}" if status.queue_seconds >= 1 else "so far"
    return "unreachable", f"no look at the queue succeeded {since}: {status.queue_problem or 'the store is silent'}"


def _late(status: Status) -> tuple[State, str] | None:
    lag, limits, loader = status.lag_seconds, status.limits, status.loader
    still = status.still_seconds
    if loader is not None:  # entries that came a moment ago are not late, however old they are and long it had none
        still = min(loader.seconds_without_commit, math.inf if still is None else still)
    is_old = lag is None or lag > limits.stuck_s or status.is_ahead
    if status.lag_batches and still is not None and still > limits.stuck_s and is_old:
        why = f": {loader.error}" if loader and loader.error else ""
        since = human_seconds(loader.seconds_without_commit if loader else still)
        nothing = "no commit" if status.leases is None else "none taken by a worker"
        return "stuck", f"{plural(status.lag_batches, 'batches')} waiting, {nothing} for {since}{why}"
    if status.loader is None and still is None and status.attempts > 1 and lag is not None and lag > limits.stuck_s:
        return "stuck", f"attempt {status.attempts}, and the oldest entry has waited for {human_seconds(lag)}"
    if lag is not None and limits.max_lag_s is not None and lag > limits.max_lag_s:
        return "behind", f"the oldest entry has waited for {human_seconds(lag)}, the limit is {limits.max_lag_s:g} s"
    return None


def _at_work(status: Status) -> tuple[State, str]:
    loader, waiting = status.loader, status.lag_batches
    if loader is not None and loader.phase == "starting":
        return "starting", "the loader has not claimed the queue yet"
    if loader is not None and loader.phase == "retrying":
        return "retrying", f"attempt {loader.plan_attempts} failed: {loader.error}"
    if loader is not None and loader.phase == "loading":
        return "loading", f"batches {loader.plan_first}..{loader.plan_last} are under way"
    if waiting is None:
        return "starting", "the queue was not looked at yet"
    if waiting:
        return "waiting", f"{plural(waiting, 'batches')} in the queue, not loaded yet"
    return "idle", "everything is loaded" if loader else "nothing waits"
