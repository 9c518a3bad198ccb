"""`buffer tail`: the newest records of a queue, and the ones to come. Claims nothing, acks nothing."""

from __future__ import annotations

import base64
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import click

from buffer.cli.interrupts import InterruptibleClock, check_interrupt
from buffer.cli.look import fetch_handle, open_queue
from buffer.cli.older import legacy_option, older_path, tail_pairs
from buffer.cli.options import queue_options
from buffer.cli.printing import echo, is_terminal, printable, printable_json
from buffer.cli.shell import DONE, FAILED, INTERVAL, describe, json_option
from buffer.consume.fetch import FetchHandle
from buffer.errors import CorruptBatch, LocationRefused, ManifestLost, ObjectNotFound
from buffer.inspect.status import read_manifest
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, ConsumedBatch, Metadata
from buffer.store.base import CanPoll, Store

WALK_ENTRIES_MAX = 64  # held at once; each may have the metadata of many thousand calls

Print = Callable[[ConsumedBatch, Metadata | None, int, bytes], None]
"""Takes a batch, and of one record in it the metadata item, the index and the bytes."""


@click.command()
@queue_options
@click.option("-n", "--entries", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many.")
@click.option("--from", "first", type=click.IntRange(min=0), help="All from this sequence on, instead of the last few.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--interval-s", type=INTERVAL, default=0.5, show_default=True, help="How often to look, with -f.")
@legacy_option
@json_option
def tail(
    count: int, first: int | None, follow: bool, interval_s: float, legacy: bool, as_json: bool, **options: Any
) -> int:
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

    Batches that are missing or corrupt are named on stderr and left out. Exit code 1 if any of them is still in
    the queue at the end; `buffer verify` lists them all.

    Of a queue of the older format it prints pairs, as key, tab, value; with --json: location, index, key, value,
    key_base64, value_base64. `--from` means nothing there.
    """
    config, store = open_queue(options)
    if (older := older_path(store, config, legacy=legacy)) is not None:
        follow_s = interval_s if follow else None
        return tail_pairs(store, config, older, count, follow_s=follow_s, as_json=as_json)
    batches = Batches(fetch_handle(config, store))
    show = _print_json if as_json else _print_escaped if is_terminal(sys.stdout) else _print_bytes
    path = config.manifest_path
    manifest = _wait_for_queue(store, path, interval_s) if follow else read_manifest(store, path)
    for descriptor, start in _start(batches, manifest, count, first):
        batches.show(descriptor, start, show)
    if follow:
        for descriptor in _follow(store, path, manifest.next_sequence, interval_s):
            batches.show(descriptor, 0, show)
    if not batches.bad:
        return DONE
    # A loader may have acked them, and a collector deleted them, while we read.
    return FAILED if max(batches.bad) >= read_manifest(store, path).first_sequence else DONE


class Batches:
    """Fetches, and remembers which batches it could not show: the others are worth seeing all the same."""

    def __init__(self, handle: FetchHandle) -> None:
        self.bad: list[int] = []
        self._handle = handle

    def count(self, descriptor: BatchDescriptor) -> int:
        """How many records it holds; none if it cannot be shown."""
        batch = self._fetch(descriptor)
        return len(batch) if batch else 0

    def show(self, descriptor: BatchDescriptor, start: int, show: Print) -> None:
        check_interrupt()
        batch = self._fetch(descriptor)
        if batch:
            _print_batch(batch, start, show)

    def _fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch | None:
        """None, after a warning, for a batch that is missing or corrupt."""
        try:
            return self._handle.fetch(descriptor)
        except ObjectNotFound:
            echo(f"warning: batch {descriptor.sequence} is gone: {descriptor.location}", err=True)
        except LocationRefused as error:
            echo(f"warning: batch {descriptor.sequence} is refused: {describe(error)}", err=True)
        except CorruptBatch as error:
            echo(f"warning: batch {descriptor.sequence} is corrupt: {describe(error)}", err=True)
        self.bad.append(descriptor.sequence)
        return None


def _start(
    batches: Batches, manifest: Manifest, count: int, first: int | None
) -> Iterator[tuple[BatchDescriptor, int]]:
    """The batches to begin with, and the index in each where to begin.

    The last few are found backwards, and fetched again when they are due: no more than one is ever held, for a few
    hundred stored bytes may expand to a gigabyte.
    """
    if first is not None:
        yield from ((descriptor, 0) for descriptor in manifest.entries_from(first))
        return
    found: list[tuple[BatchDescriptor, int]] = []
    newest_first = _backwards(manifest)
    while count > 0 and (newest := next(newest_first, None)) is not None:
        if entries := batches.count(newest):
            found.append((newest, max(0, entries - count)))
            count -= entries
    yield from reversed(found)


def _backwards(manifest: Manifest) -> Iterator[BatchDescriptor]:
    """The entries, newest first. Each walk goes through all that come before, so it brings more than the last one."""
    stop, wanted = manifest.next_sequence, 1
    while stop > manifest.first_sequence:
        start = max(manifest.first_sequence, stop - wanted)
        yield from reversed(list(islice(manifest.entries_from(start), stop - start)))
        stop, wanted = start, min(2 * wanted, WALK_ENTRIES_MAX)


def _wait_for_queue(store: Store, path: str, interval_s: float) -> Manifest:
    """With -f there need not be a queue yet. Said once: a wrong path looks just the same."""
    clock = InterruptibleClock()
    told = False
    while True:
        try:
            return read_manifest(store, path)
        except ObjectNotFound:
            if not told:
                echo(f"there is no queue yet: {store.url} has no manifest {path!r}; waiting for it", err=True)
                told = True
            clock.sleep(interval_s)


def _follow(store: CanPoll, path: str, sequence: int, interval_s: float) -> Iterator[BatchDescriptor]:
    """Every entry from `sequence` on, as it comes. An unchanged manifest costs no transfer."""
    clock = InterruptibleClock()
    version = ""
    while True:
        try:
            seen = store.get_if_changed(path, version) if version else store.get(path)
        except ObjectNotFound as error:
            raise ManifestLost(f"the manifest {path!r} was there and is gone", location=path) from error
        if seen is not None:
            version = seen.version
            manifest = Manifest.from_bytes(seen.data, location=path)
            if manifest.first_sequence > sequence:
                missed = f"{sequence}..{manifest.first_sequence - 1}"
                echo(f"warning: batches {missed} were acked before they could be shown", err=True)
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
    sys.stdout.write("\t".join(map(printable, text.split("\t"))) + "\n")


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
    sys.stdout.write(printable_json(json.dumps(line, ensure_ascii=False)) + "\n")
