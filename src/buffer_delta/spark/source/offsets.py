"""A stream's place, and whether the queue still holds what a checkpoint asks for. Pure; used by `stream`.

    {"first": 40, "next": 42, "after": "ingest/01J….batch"}      the range that ends here was 40..41

- `first` makes a range whole: Spark keeps only the ends, and asks again where its first range began. Should another
  consumer have taken batches away meanwhile, the answer differs, and the replay must not be shorter in silence.
- `after` is where batch 41 lies: a manifest put back from a backup uses sequences again, and must not pass for the one
  that the checkpoint means. It is null in the first offset of a stream.
- Spark compares offsets as text. So a place has one spelling: an offset at which nothing came to be new is returned as
  it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from buffer.errors import InvalidInput, ManifestLost, QueueBehindConsumer, QueueBound
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer_delta.errors import SequenceGap, StartUnknown

LEASES = "leases"
"""The section of a ledger with which workers share a queue."""


@dataclass(frozen=True, slots=True)
class Offset:
    first: int
    """Where the range that ends here begins."""
    next: int
    """The sequence that comes next."""
    after: str | None = None
    """The location of the batch before it, where that is known."""

    @classmethod
    def at(cls, sequence: int) -> Self:
        """A beginning."""
        return cls(sequence, sequence)

    def to_json(self) -> dict[str, Any]:
        return {"first": self.first, "next": self.next, "after": self.after}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Raises InvalidInput for a checkpoint of something else."""
        if isinstance(value, Mapping) and value.keys() == {"first", "next", "after"}:
            first, following, after = value["first"], value["next"], value["after"]
            whole = type(first) is type(following) is int and 0 <= first <= following
            if whole and (after is None or isinstance(after, str)):
                return cls(first, following, after)
        raise InvalidInput(
            f"the checkpoint has the offset {value!r}, which is none of this data source: it belongs to another query. "
            "Use another checkpointLocation"
        )

    @property
    def last_done(self) -> int | None:
        return self.next - 1 if self.next else None


def first_offset(manifest: Manifest, start: int | str | None, path: str) -> Offset:
    """Where a query without a checkpoint begins. Raises SequenceGap or QueueBehindConsumer."""
    if isinstance(start, int):
        check_held(manifest, start, path)
        return Offset.at(start)
    return Offset.at(manifest.first_sequence)


def check_unread(manifest: Manifest, path: str) -> None:
    """A query that has no checkpoint, and was not told where to start, must be the first reader."""
    if manifest.epoch == 0:
        return
    held = f"batches {manifest.first_sequence}..{manifest.next_sequence - 1}" if len(manifest) else "nothing"
    raise StartUnknown(
        f"the queue {path!r} was read before (its epoch is {manifest.epoch}) and holds {held}, but this query has "
        "no checkpoint that tells which of them were processed already: was it deleted, or is another query or "
        f"consumer at work? Pass option('start', 'earliest') to begin with {manifest.first_sequence}, or the "
        "sequence of the first batch that is not processed yet; that takes the queue over",
        location=path,
        first_sequence=manifest.first_sequence,
        next_sequence=manifest.next_sequence,
    )


def range_start(start: Offset, end: Offset) -> Offset:
    """Where the range that ends at `end` began, whatever Spark thinks. Raises InvalidInput for a damaged checkpoint."""
    if start.next == end.first:
        return start
    if start.after is not None:  # then Spark read it from the checkpoint
        raise InvalidInput(
            f"the checkpoint has a range {end.first}..{end.next - 1} after one that ends before {start.next}: it is "
            "damaged, or put together of two"
        )
    return Offset.at(end.first)


def check_held(manifest: Manifest, first: int, path: str) -> None:
    """The queue must hold, or be about to hold, the batch `first`."""
    if first < manifest.first_sequence:
        raise SequenceGap(
            f"the query goes on at sequence {first}, but the queue {path!r} starts at {manifest.first_sequence}: "
            f"{manifest.first_sequence - first} batches between them were acked by somebody, and are gone. If they are "
            "in your table, or can be missed, start a new checkpoint with "
            f"option('start', '{manifest.first_sequence}'); else put the right checkpoint back",
            committed=first - 1,
            earliest=manifest.first_sequence,
        )
    if first > manifest.next_sequence:
        raise QueueBehindConsumer(
            f"the query goes on at sequence {first}, but the queue {path!r} has only ever held sequences below "
            f"{manifest.next_sequence}: it is another queue, or was restored from a backup; check path and "
            "checkpointLocation",
            location=path,
            last_acked=first - 1,
            next_sequence=manifest.next_sequence,
        )


def check_same(manifest: Manifest, offset: Offset, path: str) -> None:
    """The batch before an offset must be the one that was handed out, if it is still there."""
    if offset.after is None or offset.next == 0:
        return
    found = manifest.read(offset.next - 1)
    if found is not None and found.location != offset.after:
        raise ManifestLost(
            f"sequence {offset.next - 1} of {path!r} was {offset.after!r} when this query read it, now it is "
            f"{found.location!r}: the manifest was restored from a backup or replaced. Put the newest one back, or "
            "start a new checkpoint",
            location=path,
            next_sequence=manifest.next_sequence,
        )


def batches_between(manifest: Manifest, start: Offset, end: Offset, path: str) -> list[BatchDescriptor]:
    """Exactly the batches of a range that a checkpoint names. Raises where the queue does not hold all of them."""
    check_held(manifest, start.next, path)
    check_held(manifest, end.next, path)
    check_same(manifest, end, path)
    return list(islice(manifest.entries_from(start.next), end.next - start.next))


def refuse_bound(ledger: Ledger | None, path: str) -> None:
    """A queue has one way out: what a query acked would be missing in the tables of a loader. Raises QueueBound."""
    if ledger is None:
        return
    if not ledger.is_unbound:
        raise QueueBound(
            f"the queue {path!r} feeds {', '.join(map(repr, ledger.tables))} through a loader ({ledger.app_id!r}): a "
            "query that acks would take batches away from it. Read the table instead; or look at the queue without "
            "taking anything, by spark.read or with option('ack', 'false')",
            app_id=None,
            tables=(),
            bound_app_id=ledger.app_id,
            bound_tables=ledger.tables,
        )
    if LEASES in ledger.sections:
        raise QueueBound(
            f"the queue {path!r} is shared by workers that lease its batches: a query that acks would take them away. "
            "Look at it without taking anything, by spark.read or with option('ack', 'false')",
            app_id=None,
            tables=(),
            bound_app_id=None,
            bound_tables=(),
        )
