"""A run, readable: one line per thing that happened, with virtual time and who did it.

Tracing costs more than simulating, so runs by the thousand go without; a seed that fails is run again with it.
"""

from __future__ import annotations

from buffer.errors import CorruptData
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.names import batch_ulid

NAME_TAIL = 6  # characters of a ULID that tell two batches apart in one run


class Trace:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, now_s: float, who: str, what: str) -> None:
        self.lines.append(f"{now_s:12.3f}  {who:<12}  {what}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def short(location: str) -> str:
    """A location as a trace shows it: the end of a ULID is enough."""
    ulid = batch_ulid(location)
    return location.rpartition("/")[2] if ulid is None else f"…{ulid[-NAME_TAIL:]}.batch"


def describe(location: str, data: bytes | None) -> str:
    """What an object says, in a few words."""
    if data is None:
        return "nothing"
    if location.endswith(".json"):  # the older format: it speaks for itself
        return data.decode(errors="replace")
    try:
        if location.endswith(".ledger"):
            return _describe_ledger(Ledger.from_bytes(data))
        if batch_ulid(location) is None:
            return _describe_manifest(Manifest.from_bytes(data))
    except CorruptData as error:
        return f"damaged: {error}"
    return f"{len(data)} bytes"


def _describe_manifest(manifest: Manifest) -> str:
    entries = " ".join(f"{entry.sequence}:{short(entry.location)}" for entry in manifest)
    return f"[epoch {manifest.epoch}, next {manifest.next_sequence}: {entries or 'empty'}]"


def _describe_ledger(ledger: Ledger) -> str:
    plan = ledger.plan
    text = "no plan"
    if plan is not None:
        split = "" if plan.quarantined is None else f", split {sorted(plan.quarantined)}"
        text = f"plan {plan.first}..{plan.last} attempt {plan.attempts}{split}"
    blocked = ", BLOCKED" if ledger.blocked else ""
    born = "" if ledger.born else "not born, "
    return f"[{born}generation {ledger.generation}, epoch {ledger.epoch}, {text}{blocked}]"
