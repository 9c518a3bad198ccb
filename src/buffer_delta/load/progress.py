"""What one commit did, for people, logs and notebooks."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from html import escape
from typing import Any


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
        speed = self.bytes / self.seconds / 1e6 if self.seconds else 0.0
        bad = f", {self.dead_letters:,} dead letters" if self.dead_letters else ""
        return (
            f"batches {self.first}..{self.last}: {self.rows:,} rows{bad}, {self.bytes / 1e6:,.1f} MB in "
            f"{self.seconds:.2f} s ({speed:,.1f} MB/s), {self.files} files; "
            f"{self.lag_batches} batches behind ({self.lag_seconds:.1f} s)"
        )

    def _repr_html_(self) -> str:
        return html_table("Progress", self.to_dict())


def html_table(title: str, fields: dict[str, Any]) -> str:
    """A small two-column table for notebooks."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in fields.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
