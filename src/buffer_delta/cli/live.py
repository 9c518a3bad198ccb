"""What `buffer-delta load` shows while it works: one line on a terminal, a line for each commit elsewhere.

The line is drawn anew every half second from what the loader says of itself, so it moves in long commits, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from buffer.cli.printing import is_terminal, printable
from buffer.inspect.human import human_bytes, human_seconds
from buffer_delta.serve.facts import CommitFacts
from buffer_delta.serve.status import Status

DRAWS_PER_S = 2
RECENT_S = 60.0


@contextmanager
def live_line(status: Callable[[], Status]) -> Iterator[None]:
    """The line, on stderr, for the block. Quiet unless stderr is a terminal."""
    if not is_terminal(sys.stderr) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def drawn() -> Text:
        return Text(printable(line(status())), overflow="ellipsis", no_wrap=True)

    with Live(
        get_renderable=drawn, console=Console(stderr=True), refresh_per_second=DRAWS_PER_S, transient=True, screen=False
    ):
        yield


def line(status: Status) -> str:
    """`loading 340..359 for 2.0 s · 1,234,567 rows · 12.3 MB/s · 42 behind (12.0 s), ~1 min 20 s left`."""
    loader = status.loader
    if loader is None:
        return status.state
    parts: list[str] = [status.state]
    if loader.plan_first is not None:
        again = f", attempt {loader.plan_attempts}" if loader.plan_attempts > 1 else ""
        parts[0] += f" {loader.plan_first}..{loader.plan_last} for {human_seconds(loader.phase_seconds)}{again}"
    parts.append(f"{loader.rows:,} rows")
    speed = bytes_per_second(loader.last_commits)
    if speed is not None:
        parts.append(f"{human_bytes(speed)}/s")
    if status.lag_batches:
        age = f" ({human_seconds(status.lag_seconds)})" if status.lag_seconds is not None else ""
        left_s = caught_up_in_s(loader.last_commits, status.lag_batches)
        left = f", ~{human_seconds(round(left_s))} left" if left_s is not None else ""
        if left_s is None and len(_recent(loader.last_commits)) > 1:
            left = ", not catching up"
        parts.append(f"{status.lag_batches:,} behind{age}{left}")
    elif status.lag_batches == 0:
        parts.append("all loaded")
    return " · ".join(parts)


def bytes_per_second(commits: Sequence[CommitFacts]) -> float | None:
    """While commits were under way, over the last minute of them."""
    recent = _recent(commits)
    seconds = sum(commit.seconds for commit in recent)
    return sum(commit.bytes for commit in recent) / seconds if seconds else None


def caught_up_in_s(commits: Sequence[CommitFacts], behind: int) -> float | None:
    """How long until nothing waits, if batches go on to come and to go as they did lately; None: never.

    Between two commits `last` tells what went, and what was behind after each what came.
    """
    recent = _recent(commits)
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    seconds = (last.time_ms - first.time_ms) / 1000
    shrunk = first.lag_batches - last.lag_batches
    if seconds <= 0 or shrunk <= 0:
        return None
    return behind * seconds / shrunk


def _recent(commits: Sequence[CommitFacts]) -> Sequence[CommitFacts]:
    return [commit for commit in commits if commit.time_ms >= commits[-1].time_ms - RECENT_S * 1000]
