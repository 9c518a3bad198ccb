"""Batches in a folder, and what becomes of them far from here."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buffer.codec.batch import encode_batch
from buffer.consume.fetch import FetchHandle
from buffer.model import BatchDescriptor, Metadata
from buffer.store.local import LocalStore
from buffer_delta.decode.fetching import Group
from buffer_delta.decode.layout import RowLayout
from buffer_delta.decode.policy import policy_for
from buffer_delta.decode.rows import RowDecoder
from buffer_delta.formats import Format


class Batches:
    """Batches in a folder, and the descriptors of those that were put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(folder)
        self.handle = FetchHandle(self.store, attempts=1)

    def put(
        self, sequence: int, entries: Sequence[bytes], metadata: tuple[Metadata, ...] = (), compression: str = "none"
    ) -> BatchDescriptor:
        location = f"ingest/{sequence}.batch"
        self.store.put(location, encode_batch(list(entries), compression))
        return BatchDescriptor(sequence, location, metadata)


def decoder(form: Format, layout: RowLayout | None = None, *, dead_letters: bool = False) -> RowDecoder:
    layout = layout or RowLayout()
    return RowDecoder(form, layout, policy_for(form, layout, dead_letters=dead_letters))


def run(
    batches: Batches,
    group: Sequence[BatchDescriptor],
    form: Format,
    layout: RowLayout | None = None,
    *,
    dead_letters: bool = False,
    quarantined: dict[int, str] | None = None,
) -> list[dict[str, Any]]:
    """The rows of one group, made from what would travel to another process."""
    made = decoder(form, layout, dead_letters=dead_letters)
    whole = (made, batches.handle, Group(group, quarantined or {}))
    made, handle, share = pickle.loads(pickle.dumps(whole))
    found = list(made.rows(handle, share))
    assert all(batch.schema == made.schema for batch in found)
    return [row for batch in found for row in batch.to_pylist()]
