"""What `buffer-delta demo` tells: each thing as it happens, and at the end the rows, the history and the count."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from buffer.cli.printing import PIPED_WIDTH, cell, is_terminal, printable
from buffer.clock import SystemClock
from buffer_delta.delta.txn import Txn


class Story:
    """What happens, as it happens, with the seconds since the start. Colours on terminals only."""

    def __init__(self, *, quiet: bool = False) -> None:
        width = None if is_terminal(sys.stdout) else PIPED_WIDTH
        self.console = Console(highlight=False, quiet=quiet, width=width, soft_wrap=True)
        self._clock = SystemClock()
        self._started_s = self._clock.monotonic_s()

    @property
    def seconds(self) -> float:
        return self._clock.monotonic_s() - self._started_s

    def tell(self, text: str, style: str = "") -> None:
        self.console.print(Text(f"{self.seconds:5.1f} s  {printable(text)}", style))


def is_exact(result: dict[str, Any]) -> bool:
    wrong = ("duplicates", "missing", "unexpected", "repeated_positions")
    return result["produced"] > 0 and not any(result[key] for key in wrong)


def show(story: Story, result: dict[str, Any], folder: Path) -> None:
    console = story.console
    console.print()
    console.print(_rows_table("The last rows", result["rows"]))
    console.print()
    console.print(_history_table(result["history"]))
    console.print()
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(justify="right")
    for name in ("produced", "loaded", "duplicates", "missing", "batches", "commits"):
        facts.add_row(name, f"{result[name]:,}")
    facts.add_row("seconds", f"{result['seconds']:,.1f}")
    console.print(facts)
    console.print()
    speed = f"{result['rows_per_second']:,} rows/s, {result['mb_per_second']:,.1f} MB/s"
    console.print(Text(f"Start-up {result['start_up_seconds']:,.1f} s; then the full commits ran at {speed}."))
    console.print()
    if is_exact(result):
        console.print("Every event is in the table exactly once.", style="bold green")
    else:
        console.print(Text(printable(f"NOT exactly once: {result}"), "bold red"))
    console.print(Text(printable(f"Look around: buffer status --store {folder}/queue")))


def _rows_table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(*map(cell, row.values()))
    return table


def _history_table(history: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        title="The table's history (DESCRIBE HISTORY): each commit says what it loaded, the epoch says who",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for column in ("version", "timestamp", "operation", "rows", "userMetadata"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    for commit in history:
        txn = Txn.from_note(commit["userMetadata"])
        shown = f"first {txn.first}, last {txn.last}, epoch {txn.epoch}" if txn else ""
        rows = f"{int(commit['rows']):,}" if commit["rows"] is not None else ""
        table.add_row(*map(cell, (commit["version"], commit["timestamp"], commit["operation"], rows, shown)))
    return table
