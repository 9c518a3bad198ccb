"""What the protocol asks of the parts around it: tables that commit atomically, work that turns batches into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from buffer.ledger import Plan
from buffer.model import BatchDescriptor

NOTHING = -1
"""The committed sequence of a table that has loaded nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that could not be read, and whose fault that is."""

    sequence: int
    location: str
    error: str
    kind: Literal["data", "missing", "infra"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Something that took back rows which the table's transaction still counts as committed."""

    operation: str
    version: int
    timestamp: str


class Target(Protocol):
    """One table. `append` is one transaction that holds the rows and `last`, or nothing."""

    @property
    def name(self) -> str: ...
    def table_id(self) -> str | None: ...
    def committed(self, app_id: str) -> int | None: ...
    def rewritten_since(self, app_id: str) -> Rewrite | None: ...
    def append(
        self, rows: Any, *, app_id: str, first: int, last: int, epoch: int, entries: int, accept_rewrites: bool = False
    ) -> Any:
        """`entries` counts the batches of the range.

        Raises ConcurrentCommit where another commit came between, and TableRewritten, unless that is accepted, where
        one since our last took rows back.
        """
        ...


class Work(Protocol):
    """Turning batches into rows: a pure function of their bytes and the configuration behind `digest`."""

    @property
    def digest(self) -> str: ...

    def prepare(
        self, descriptors: Sequence[BatchDescriptor], quarantined: Mapping[int, str]
    ) -> AbstractContextManager[Mapping[str, Any]]:
        """The rows for each target, by its name. With several targets everything is decoded on entry, once."""
        ...

    def probe(self, descriptors: Sequence[BatchDescriptor]) -> Sequence[Failure]:
        """Try to read each batch; report those that fail."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator decides."""

    app_id: str | None = None
    adopt: bool = False
    accept_gaps: bool = False
    max_delivery_attempts: int = 5
    dlq_strategy: Literal["skip", "block", "block_and_dlq"] = "block"


@dataclass(frozen=True, slots=True)
class Done:
    """One range that is in every table and acked."""

    plan: Plan
    descriptors: Sequence[BatchDescriptor]
    commits: Mapping[str, Any]
    """What each target's append returned; a table that already had the range is not in it."""
