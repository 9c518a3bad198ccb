"""`buffer produce`: lines or length-prefixed records from stdin or files into a queue.

Nothing counts as produced before it is durable. The first batch that fails ends the reading, and the summary says
how many records are durable and which one is the first that is not, so that a run can be taken up again.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from buffer.cli.options import queue_options, settings
from buffer.cli.records import CHUNK_BYTES, Reader, read_chunks, read_length_prefixed, read_lines
from buffer.cli.shell import DONE, INTERRUPTED, describe, is_terminal, json_option, print_facts, print_json
from buffer.clock import SystemClock
from buffer.config import ProducerConfig
from buffer.durability import DurabilityWatcher, Durable, WriteHandle
from buffer.errors import BufferQueueError, InvalidInput
from buffer.human import human_bytes, plural
from buffer.producer import Producer

TERMINATED = 143

T = TypeVar("T")


class _Stopped(BaseException):
    """Ends a read that waits for input."""


class _Signals:
    """SIGINT and SIGTERM stop the reading, between two calls or while it waits; a second one stops everything."""

    CODES: ClassVar = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}

    def __init__(self) -> None:
        self.code: int | None = None
        self._is_reading = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.code is not None:
            raise KeyboardInterrupt
        self.code = self.CODES[signal.Signals(number)]
        if self._is_reading:
            raise _Stopped

    def until_stopped(self, items: Iterator[T]) -> Iterator[T]:
        with ExitStack() as stack:
            for number in self.CODES:
                stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
            while self.code is None:
                try:
                    self._is_reading = True
                    item = next(items, None)
                    self._is_reading = False
                except _Stopped:
                    return
                if item is None:
                    return
                yield item


@dataclass
class Tally:
    """What became of the records, batch by batch, in produce order. Keeps only batches that are under way."""

    entries: int = 0
    batches: int = 0
    bytes: int = 0
    skipped_empty: int = 0
    """Records of no bytes that were left out; the other counts are without them."""
    failed_entries: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    first_failed_entry: int | None = None
    """Its place in the whole input, from 0. Records that were left out count there, so that one can go on at it."""
    error: BufferQueueError | None = None
    _pending: deque[tuple[DurabilityWatcher, int, int, int]] = field(default_factory=deque)

    def add(self, handle: WriteHandle, first: int, entries: int, size: int) -> None:
        """Records of one call; `first` is the place of the first of them in the input."""
        if self._pending and self._pending[-1][0] is handle.watcher:
            _, first, more_entries, more_bytes = self._pending.pop()
            entries, size = entries + more_entries, size + more_bytes
        self._pending.append((handle.watcher, first, entries, size))
        self.settle()

    def settle(self) -> None:
        """Count the batches whose fate is known."""
        while self._pending and (result := self._pending[0][0].result()) is not None:
            _, first, entries, size = self._pending.popleft()
            if isinstance(result, Durable):
                self.entries += entries
                self.batches += 1
                self.bytes += size
                self.first_sequence = result.sequence if self.first_sequence is None else self.first_sequence
                self.last_sequence = result.sequence
                continue
            if self.error is None:
                self.error = result
                self.first_failed_entry = first
            self.failed_entries += entries

    def summary(self, seconds: float) -> dict[str, Any]:
        return {
            "entries": self.entries,
            "batches": self.batches,
            "bytes": self.bytes,
            "skipped_empty": self.skipped_empty,
            "seconds": round(seconds, 3),
            "first_sequence": self.first_sequence,
            "last_sequence": self.last_sequence,
            "failed_entries": self.failed_entries,
            "first_failed_entry": self.first_failed_entry,
            "error": str(self.error) if self.error else None,
        }


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@queue_options
@click.option("--length-prefixed", is_flag=True, help="Records are `u32 little-endian | bytes`, not lines.")
@click.option("--skip-empty", is_flag=True, help="Leave out records of no bytes, like empty lines.")
@click.option("--compression", type=click.Choice(["none", "zstd"]), help="Of the batches. [default: none]")
@click.option("--flush-interval-ms", type=int, help="A batch waits at most this long for more. [default: 100]")
@click.option("--flush-size-bytes", type=int, help="… or until it has this size. [default: 64 MiB]")
@click.option("--metadata", default="", help="Text that goes with every record, into the column _metadata.")
@json_option
def produce(
    files: tuple[Path, ...], length_prefixed: bool, skip_empty: bool, metadata: str, as_json: bool, **options: Any
) -> int:
    """Put records into a queue: every line of stdin, or of FILE..., is one.

    It ends with 0 only if every record is durable: uploaded, and in the queue's manifest.

    \b
    Examples:
      echo '{"id": 1}' | buffer produce --store ./queue
      buffer produce --store s3://bucket/events --compression zstd *.jsonl
      tail -f app.log | buffer produce --store ./queue --flush-interval-ms 1000
      ./export --binary | buffer produce --store ./queue --length-prefixed

    Ctrl-C stops reading and flushes the whole records that were read. After a failure the summary says how many
    records are durable and which is the first that is not, so that you can go on there. That number counts
    every record of the input from 0, also the empty ones that --skip-empty leaves out.
    """
    config = settings(ProducerConfig, options)
    clock, tally, signals = SystemClock(), Tally(), _Signals()
    started_s = clock.monotonic_s()
    reader: Reader = read_length_prefixed if length_prefixed else read_lines
    trouble: Exception | None = None
    payload = metadata.encode("utf-8", "surrogateescape")  # an argument may hold any bytes, and they stay as they are
    if not files and sys.stdin is None:
        raise InvalidInput("stdin is closed, so there is nothing to read: pipe the records in, or name files")
    producer = Producer(config)
    read = 0
    try:
        for records in signals.until_stopped(_records(files, reader, config)):
            kept = [record for record in records if record] if skip_empty else records
            tally.skipped_empty += len(records) - len(kept)
            if kept:
                handle = producer.produce(kept, payload)
                tally.add(handle, read + records.index(kept[0]), len(kept), sum(map(len, kept)))
            read += len(records)
            if tally.error:
                break
    except (BufferQueueError, OSError) as error:  # of the input; what came before it still counts
        trouble = error
    _close(producer)
    tally.settle()
    _print_summary(tally, clock.monotonic_s() - started_s, as_json)
    if tally.error and trouble:
        click.echo(f"error: {describe(trouble)}", err=True)
    if failure := tally.error or trouble:
        raise failure
    return signals.code or DONE


def _close(producer: Producer) -> None:
    """Flush. What failed is known to the handles, each batch by itself, so the tally tells it better."""
    try:
        producer.close()
    except BufferQueueError:
        return


def _records(files: Iterable[Path], reader: Reader, config: ProducerConfig) -> Iterator[list[bytes]]:
    limit = min(CHUNK_BYTES, config.flush_size_bytes)  # a call never spans two batches
    if not files:
        if is_terminal(sys.stdin):
            click.echo("reading from the terminal; Ctrl-D ends the input", err=True)
        yield from reader(read_chunks(sys.stdin.fileno(), limit), config.max_batch_bytes)
        return
    with _progress(files) as (progress, task):
        for path in files:
            with path.open("rb", buffering=0) as file:
                chunks = _counted(read_chunks(file.fileno(), limit), progress, task)
                yield from reader(chunks, config.max_batch_bytes)


def _counted(chunks: Iterable[bytes], progress: Progress, task: TaskID) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        progress.advance(task, len(chunk))


@contextmanager
def _progress(files: Iterable[Path]) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("producing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    total = sum(path.stat().st_size for path in files)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not is_terminal(sys.stderr)) as progress:
        yield progress, progress.add_task("", total=total)


def _print_summary(tally: Tally, seconds: float, as_json: bool) -> None:
    summary = tally.summary(seconds)
    if as_json:
        print_json(summary)
    else:
        rate = tally.bytes / seconds if seconds else 0.0
        sequences = f"{tally.first_sequence}..{tally.last_sequence}" if tally.batches else None
        print_facts(
            {
                "durable": f"{plural(tally.entries, 'entries')} in {plural(tally.batches, 'batches')}",
                "sequences": sequences,
                "bytes": f"{human_bytes(tally.bytes)} in {seconds:.2f} s ({human_bytes(rate)}/s)",
                "not durable": f"{plural(tally.failed_entries, 'entries')}; the first, counted from 0, is number "
                f"{tally.first_failed_entry:,}"
                if tally.first_failed_entry is not None
                else None,
                "left out": f"{tally.skipped_empty:,} empty" if tally.skipped_empty else None,
            }
        )
