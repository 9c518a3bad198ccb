"""`buffer tail`: the newest records of a queue, and the ones to come. Claims nothing, acks nothing."""

from __future__ import annotations

import base64
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import click

from buffer.cli.look import fetch_handle, open_queue
from buffer.cli.options import queue_options
from buffer.cli.shell import INTERVAL, is_terminal, json_option
from buffer.clock import SystemClock
from buffer.errors import ManifestLost, ObjectNotFound
from buffer.fetch import FetchHandle
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, ConsumedBatch, Metadata
from buffer.status import naming, read_manifest
from buffer.store.base import CanPoll

Print = Callable[[ConsumedBatch, Metadata | None, int, bytes], None]
"""Takes a batch, and of one record in it the metadata item, the index and the bytes."""


@click.command()
@queue_options
@click.option("-n", "--entries", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many.")
@click.option("--from", "first", type=click.IntRange(min=0), help="All from this sequence on, instead of the last few.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--interval-s", type=INTERVAL, default=0.5, show_default=True, help="How often to look, with -f.")
@json_option
def tail(count: int, first: int | None, follow: bool, interval_s: float, as_json: bool, **options: Any) -> None:
    """Print the newest records that wait in a queue.

    It claims nothing and acks nothing, so it disturbs no loader. What a loader has acked is no longer in the queue
    and is not shown.

    \b
    Examples:
      buffer tail --store ./queue
      buffer tail --store ./queue -n 0 -f          only what comes from now on
      buffer tail --store ./queue --from 0 --json | jq .value

    In a pipe each record is its bytes and a newline; on a terminal control characters are shown escaped. With
    --json each line is an object: sequence, index, location, ingestion_time_ms, metadata_base64, value (null
    unless it is UTF-8), value_base64.
    """
    config, store = open_queue(options)
    handle = fetch_handle(config, store)
    show = _print_json if as_json else _print_escaped if is_terminal(sys.stdout) else _print_bytes
    manifest = _wait_for_queue(store, config.manifest_path, interval_s) if follow else None
    manifest = manifest or read_manifest(store, config.manifest_path)
    for batch, start in _start(handle, manifest, count, first):
        _print_batch(batch, start, show)
    if follow:
        for descriptor in _follow(store, config.manifest_path, manifest.next_sequence, interval_s):
            batch_or_none = _fetch(handle, descriptor)
            if batch_or_none:
                _print_batch(batch_or_none, 0, show)


def _start(
    handle: FetchHandle, manifest: Manifest, count: int, first: int | None
) -> Iterator[tuple[ConsumedBatch, int]]:
    """The batches to begin with, and the index in each where to begin."""
    if first is not None:
        for descriptor in manifest.entries_from(first):
            batch = _fetch(handle, descriptor)
            if batch:
                yield batch, 0
        return
    found: list[tuple[ConsumedBatch, int]] = []
    sequence = manifest.next_sequence
    while count > 0 and sequence > manifest.first_sequence:
        sequence -= 1
        newest = manifest.read(sequence)
        batch = _fetch(handle, newest) if newest else None
        if batch:
            found.append((batch, max(0, len(batch) - count)))
            count -= len(batch)
    yield from reversed(found)


def _fetch(handle: FetchHandle, descriptor: BatchDescriptor) -> ConsumedBatch | None:
    try:
        return handle.fetch(descriptor)
    except ObjectNotFound:
        click.echo(f"warning: batch {descriptor.sequence} is gone: {descriptor.location}", err=True)
        return None


def _wait_for_queue(store: CanPoll, path: str, interval_s: float) -> Manifest | None:
    """With -f there need not be a queue yet."""
    clock = SystemClock()
    while True:
        try:
            return read_manifest(store, path)
        except ObjectNotFound:
            clock.sleep(interval_s)


def _follow(store: CanPoll, path: str, sequence: int, interval_s: float) -> Iterator[BatchDescriptor]:
    """Every entry from `sequence` on, as it comes. An unchanged manifest costs no transfer."""
    clock = SystemClock()
    version = ""
    while True:
        try:
            seen = store.get_if_changed(path, version) if version else store.get(path)
        except ObjectNotFound as error:
            raise ManifestLost(f"the manifest {path!r} was there and is gone", location=path) from error
        if seen is not None:
            version = seen.version
            with naming(path):
                manifest = Manifest.from_bytes(seen.data)
            if manifest.first_sequence > sequence:
                missed = f"{sequence}..{manifest.first_sequence - 1}"
                click.echo(f"warning: batches {missed} were acked before they could be shown", err=True)
            yield from manifest.entries_from(sequence)
            sequence = max(sequence, manifest.next_sequence)
        clock.sleep(interval_s)


# Printing


def _print_batch(batch: ConsumedBatch, start: int, show: Print) -> None:
    array = batch.to_arrow()
    starts = [item.start_index for item in batch.metadata]
    for index in range(start, len(array)):
        place = bisect_right(starts, index)  # the item whose range holds it: the last one that starts before
        show(batch, batch.metadata[place - 1] if place else None, index, array[index].as_py())
    sys.stdout.flush()


def _print_bytes(_batch: ConsumedBatch, _item: Metadata | None, _index: int, record: bytes) -> None:
    sys.stdout.buffer.write(record + b"\n")


def _print_escaped(_batch: ConsumedBatch, _item: Metadata | None, _index: int, record: bytes) -> None:
    """Records come from anywhere: their control characters must not drive the terminal."""
    text = record.decode("utf-8", "backslashreplace")
    safe = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
    sys.stdout.write(safe + "\n")


def _print_json(batch: ConsumedBatch, item: Metadata | None, index: int, record: bytes) -> None:
    try:
        value: str | None = record.decode("utf-8")
    except UnicodeDecodeError:
        value = None
    line = {
        "sequence": batch.sequence,
        "index": index,
        "location": batch.location,
        "ingestion_time_ms": item.ingestion_time_ms if item else None,
        "metadata_base64": base64.b64encode(item.payload).decode() if item else "",
        "value": value,
        "value_base64": base64.b64encode(record).decode(),
    }
    sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
