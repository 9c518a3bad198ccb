"""What a program logs, on stderr: lines for people, or one JSON document a line for machines (`--log-format json`).

    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "logger": "…", "event": "commit", "message": "…", "rows": 10}

A record may carry an `event` and `facts` (`log.info(…, extra={"event": "commit", "facts": {…}})`). In JSON such records
are always there, whatever the level: they are what the log is read for.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from buffer.cli.printing import echo, one_line, printable_json
from buffer.urls import masked

LogFormat = Literal["text", "json"]


class Shown(Protocol):
    """How much is to be shown, and in which form: it may change while the command line is parsed."""

    @property
    def log_level(self) -> int: ...

    @property
    def log_format(self) -> LogFormat: ...


class StderrHandler(logging.Handler):
    """`warning: …`, or JSON. Looks `sys.stderr` up each time: a progress bar may stand in for it."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self._shown = shown
        self.addFilter(self._is_shown)

    def _is_shown(self, record: logging.LogRecord) -> bool:
        in_json = self._shown.log_format == "json"
        return record.levelno >= self._shown.log_level or (in_json and hasattr(record, "event"))

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is None:  # closed; click would print to stdout
            return
        message = masked(record.getMessage())  # it may repeat what Spark or a server said
        if self._shown.log_format == "text":
            echo(f"{record.levelname.lower()}: {one_line(message)}", err=True)
        else:
            event = {"event": record.event} if hasattr(record, "event") else {}
            facts = {**getattr(record, "facts", {}), **event}
            write_json(record.levelname.lower(), message, logger=record.name, at_s=record.created, facts=facts)


def write_json(level: str, message: str, *, logger: str, at_s: float, facts: Mapping[str, Any]) -> None:
    """One line. What a fact is called never hides what the line itself says."""
    time = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {**facts, "time": time, "level": level, "logger": logger, "message": message.strip()}
    first = ("time", "level", "logger", "event", "message")
    ordered = {key: line[key] for key in first if key in line} | line
    echo(printable_json(json.dumps(ordered, ensure_ascii=False, default=str)), err=True)
