"""What one commit did, for people, logs and notebooks."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from html import escape
from typing import Any

from buffer.inspect.human import human_bytes, human_seconds, plural


@dataclass(frozen=True, slots=True)
class Progress:
    """One range that is committed in every table and acked."""

    first: int
    last: int
    rows: int
    """In the tables, dead letters not counted."""
    dead_letters: int
    bytes: int
    """Of the batch objects as stored."""
    files: int
    seconds: float
    lag_batches: int
    lag_seconds: float
    attempts: int

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        which = f"batch {self.first}" if self.first == self.last else f"batches {self.first}..{self.last}"
        bad = f", {plural(self.dead_letters, 'dead letters')}" if self.dead_letters else ""
        speed = f" ({human_bytes(self.bytes / self.seconds)}/s)" if self.seconds else ""
        behind = f"{plural(self.lag_batches, 'batches')} behind ({human_seconds(self.lag_seconds)})"
        return (
            f"{which}: {plural(self.rows, 'rows')}{bad}, {human_bytes(self.bytes)} in {self.seconds:.2f} s{speed}, "
            f"{plural(self.files, 'files')}; {behind if self.lag_batches else 'nothing left to load'}"
        )

    def _repr_html_(self) -> str:
        return html_table("Progress", self.to_dict())


@dataclass(frozen=True, slots=True)
class Total:
    """What a loader did from its start to its end."""

    commits: int = 0
    batches: int = 0
    rows: int = 0
    dead_letters: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """In commits."""
    deleted: int = 0
    """Objects that the queue needed no more."""

    def plus(self, progress: Progress) -> Total:
        return dataclasses.replace(
            self,
            commits=self.commits + 1,
            batches=self.batches + progress.last - progress.first + 1,
            rows=self.rows + progress.rows,
            dead_letters=self.dead_letters + progress.dead_letters,
            bytes=self.bytes + progress.bytes,
            seconds=self.seconds + progress.seconds,
        )

    def with_deleted(self, deleted: int) -> Total:
        return dataclasses.replace(self, deleted=self.deleted + deleted)

    def __str__(self) -> str:
        gone = f"; {plural(self.deleted, 'unreferenced batches')} deleted" if self.deleted else ""
        if not self.commits:
            return f"there was nothing to load{gone}"
        bad = f", {plural(self.dead_letters, 'dead letters')}" if self.dead_letters else ""
        return (
            f"loaded {plural(self.batches, 'batches')} in {plural(self.commits, 'commits')}: "
            f"{plural(self.rows, 'rows')}{bad}, {human_bytes(self.bytes)} in {self.seconds:.1f} s{gone}"
        )


def html_table(title: str, fields: dict[str, Any]) -> str:
    """A small two-column table for notebooks."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in fields.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
