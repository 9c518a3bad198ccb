"""Numbers as people say them: sizes, durations, moments. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def plural(count: int, noun: str) -> str:
    """`1 batch`, `2 batches`: for the nouns that are used here."""
    one = {"batches": "batch", "entries": "entry", "unreferenced batches": "unreferenced batch"}
    return f"{count:,} {one.get(noun, noun.removesuffix('s')) if count == 1 else noun}"


def human_time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # any 64-bit number may stand there
        return f"{time_ms} ms since 1970"


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def human_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
