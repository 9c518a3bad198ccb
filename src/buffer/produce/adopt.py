"""Appends batches that others have uploaded (`upload.py`), all in one write: Spark tasks upload, the driver appends.

The process dies: all of them are in the queue or none is. What was uploaded and not appended is an orphan that the
collector removes. A reply that is lost: `queue.py` decides, and with a client id the repetition finds out: by the mark
whether it is in the queue, and by a look whether its batches are there (`replays.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from buffer.attempts import AppendGroup, ClientSpan
from buffer.clients import ClientGuard
from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import (
    AppendOutcomeUnknown,
    IdempotencyConflict,
    InvalidInput,
    ObjectNotFound,
    ProducerStopped,
)
from buffer.manifest import PackedMetadata
from buffer.marks import encode_mark, marked
from buffer.produce.durability import Durable
from buffer.produce.groups import LateLook, append_group, count_flushed, queue_producer, rename_stale
from buffer.produce.replays import Replays
from buffer.produce.upload import NewName, Upload, make_new_name, name_valid_s, valid_until_s
from buffer.queue import QueueProducer
from buffer.store.base import CanHead, CanSwap


class CanAppend(CanSwap, CanHead, Protocol):
    """What appending others' uploads needs of a store."""

    def copy(self, source: str, target: str) -> None:
        """Copy one object. Raises ObjectNotFound."""
        ...


@dataclass(slots=True)
class _Adopted:
    """An upload, and the name under which it is to be appended."""

    location: str
    metadata: PackedMetadata
    valid_until_s: float


class CallId(NamedTuple):
    """Which call of which client: what makes its repetition recognisable."""

    client_id: str
    client_seq: int


def append_uploads(
    uploads: Iterable[Upload],
    *,
    store: CanAppend,
    clock: Clock,
    config: ProducerConfig,
    call: CallId | None = None,
) -> list[Durable]:
    """Append uploads in this order, in one write: all of them are in the queue after it, or none.

    Those whose names have become too old are copied to new ones first. Raises, with nothing appended:
    ContentionError or StorageError (call again), ObjectNotFound if an upload is gone (upload its entries again),
    InvalidInput if one is given twice, or there is none. Raises AppendOutcomeUnknown if nobody can tell: calling
    again might double them. ManifestLost and CorruptManifest are for an operator.

    With a `call` all of them together are one call of a client: repeat it as often as you like, with other uploads of
    the same entries if need be. Raises IdempotencyConflict if it is in the queue already and its batches are there;
    ProducerStopped if nobody can tell whether it is in the queue, AppendOutcomeUnknown if it is and nobody could see
    its batches: repeat it in both cases. BatchCollected if it is and one of them is gone: a repetition says the same
    while that entry waits. And MarksLost.
    """
    given = list(uploads)
    if not given or len({upload.location for upload in given}) < len(given):
        raise InvalidInput(f"{len(given)} uploads cannot be appended: give at least one, and each once")
    valid_s = name_valid_s(config)
    queue = queue_producer(store, clock, config)
    try:
        span, mark = _opened(call, queue, store, clock, config)
        group = _adopted(given, mark, clock, valid_s)
        sequences = queue.append(_drawn(group, span, store, clock, config))
    except IdempotencyConflict as conflict:
        assert call is not None, "only a client's call conflicts"
        for doubt in Replays(call.client_id, store, clock, config).doubts(call.client_seq, call.client_seq):
            raise doubt.error from conflict
        raise
    except AppendOutcomeUnknown as error:
        if call is None:
            raise
        raise ProducerStopped.after(error, call.client_id, call.client_seq) from error
    settled = LateLook(store, clock, config).settled(zip(sequences, group, strict=True))
    for outcome in settled:
        if isinstance(outcome, AppendOutcomeUnknown):
            raise outcome  # as it is, with a `call` too: it is in the queue, so its mark tells nothing more
    for upload in given:
        count_flushed(upload.entry_count, upload.payload_bytes, upload.stored_bytes)
    return [outcome for outcome in settled if isinstance(outcome, Durable)]


def _adopted(uploads: Iterable[Upload], mark: bytes | None, clock: Clock, valid_s: float) -> list[_Adopted]:
    return [
        _Adopted(
            upload.location,
            upload.metadata if mark is None else marked(upload.metadata, mark),
            valid_until_s(upload, clock, valid_s),
        )
        for upload in uploads
    ]


def _drawn(
    group: list[_Adopted], span: ClientSpan | None, store: CanAppend, clock: Clock, config: ProducerConfig
) -> Callable[[], AppendGroup]:
    valid_s = name_valid_s(config)

    def rename(batch: _Adopted) -> None:
        name = _copy_to_new_name(batch.location, store, clock, config.data_path_prefix)
        batch.location, batch.valid_until_s = name.location, name.made_s + valid_s

    def draw() -> AppendGroup:
        rename_stale(group, rename, clock, valid_s)
        return append_group(group, span)

    return draw


def _opened(
    call: CallId | None, queue: QueueProducer, store: CanSwap, clock: Clock, config: ProducerConfig
) -> tuple[ClientSpan | None, bytes | None]:
    """The call's numbers and its mark, once its client is known to be before them. Raises IdempotencyConflict."""
    if call is None:
        return None, None
    mark = encode_mark(call.client_id, call.client_seq)
    # Not alone: each call opens anew, so what it left there last is not known.
    guard = ClientGuard(
        call.client_id, store, config.manifest_path, clock, timeout_s=config.append_timeout_s, alone=False
    )
    durable_seq = guard.open(queue.read)
    if call.client_seq <= durable_seq:
        raise IdempotencyConflict.of(call.client_id, call.client_seq, durable_seq=durable_seq, in_queue=True)
    queue.guard = guard
    return ClientSpan(call.client_seq, call.client_seq), mark


def _copy_to_new_name(location: str, store: CanAppend, clock: Clock, prefix: str) -> NewName:
    try:
        return make_new_name(lambda target, source: store.copy(source, target), location, clock, prefix)
    except ObjectNotFound as error:
        raise ObjectNotFound(
            f"the upload {location!r} is gone: it waited for longer than the collector's grace period, so it was "
            "taken for an orphan; nothing was appended, upload its entries again",
            location=location,
            retryable=False,
        ) from error
