"""`buffer produce`: lines or length-prefixed records from stdin or files into a queue.

Nothing counts as produced before it is durable. The first batch that fails ends the reading. Batches behind it may be
durable all the same, so the summary says exactly which records are not, and where to go on: producing everything
from the first failed one on would double what came after it.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from io import SEEK_END, FileIO
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from buffer.cli.options import queue_options, settings
from buffer.cli.printing import echo, is_terminal, print_facts, print_json
from buffer.cli.records import CHUNK_BYTES, Reader, Stopped, calls, read_chunks, read_length_prefixed, read_lines
from buffer.cli.resume import Source, produce_source, sources
from buffer.cli.shell import DONE, INTERRUPTED, describe, json_option
from buffer.clock import SystemClock
from buffer.config import ProducerConfig
from buffer.errors import AppendOutcomeUnknown, BufferQueueError, InvalidInput
from buffer.inspect.human import human_bytes, plural
from buffer.produce.durability import DurabilityWatcher, Durable, WriteHandle
from buffer.produce.producer import Producer
from buffer.stopping import on_signals

TERMINATED = 143
RANGES_SHOWN_MAX = 20

Range = tuple[int, int]
"""The first and the last place of records that lie together in the input."""

T = TypeVar("T")

Bar = tuple[Progress, TaskID]


class _Signals:
    """SIGINT and SIGTERM stop the reading, between two reads or while it waits; a second one stops everything.

    They are heeded until the summary is told: what was read is flushed, and who stopped it must know where to go on.
    """

    CODES: ClassVar = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}

    def __init__(self) -> None:
        self.code: int | None = None
        self._is_opening = False

    def _on_signal(self, number: signal.Signals) -> None:
        if self.code is not None:
            raise KeyboardInterrupt
        self.code = self.CODES[number]
        if self._is_opening:
            raise Stopped

    def came(self) -> bool:
        return self.code is not None

    def open(self, path: Path) -> FileIO:
        """Open a file to read. A named pipe waits for its writer, and only an error ends that."""
        self._is_opening = True  # before the look: a signal comes before it or raises
        try:
            if self.came():
                raise Stopped
            return FileIO(path)
        finally:
            self._is_opening = False

    def heeded(self) -> AbstractContextManager[object]:
        return on_signals(self._on_signal, self.CODES)

    def until_stopped(self, items: Iterator[T]) -> Iterator[T]:
        """The items, until a signal came: `items` notice it by `came` and raise Stopped."""
        with suppress(Stopped):
            yield from items


@dataclass
class Tally:
    """What became of the records, batch by batch, in produce order. Keeps only batches that are under way."""

    entries: int = 0
    batches: int = 0
    bytes: int = 0
    skipped_empty: int = 0
    """Records of no bytes that were left out; the other counts are without them."""
    failed_entries: int = 0
    read: int = 0
    """How many records of the input were produced or left out. What comes after them was not looked at."""
    first_sequence: int | None = None
    last_sequence: int | None = None
    ended: bool = False
    """The input was read to its end."""
    by_mark: bool = False
    """The queue knows where to go on, so there is nothing to say about places."""
    failed: list[Range] = field(default_factory=list)
    """What is not durable. Here and below, places in the whole input, from 0; records that were left out count."""
    unknown: list[Range] = field(default_factory=list)
    """What may be in the queue or not."""
    error: BufferQueueError | None = None
    _landed_end: int = 0
    """Behind the last record that is durable, or may be."""
    _pending: deque[tuple[DurabilityWatcher, int, int, int, int]] = field(default_factory=deque)

    def add(self, handle: WriteHandle, first: int, end: int, entries: int, size: int) -> None:
        """Records of one call, from `first` up to `end` in the input; `entries` are those that were not left out."""
        watcher = handle.batch_watcher
        if self._pending and self._pending[-1][0] is watcher:
            _, first, _, more_entries, more_bytes = self._pending.pop()
            entries, size = entries + more_entries, size + more_bytes
        self._pending.append((watcher, first, end, entries, size))
        self.settle()

    def settle(self) -> None:
        """Count the batches whose fate is known."""
        while self._pending and (result := self._pending[0][0].result()) is not None:
            _, first, end, entries, size = self._pending.popleft()
            if isinstance(result, Durable):
                self.entries += entries
                self.batches += 1
                self.bytes += size
                self.first_sequence = result.sequence if self.first_sequence is None else self.first_sequence
                self.last_sequence = result.sequence
                self._landed_end = end
                continue
            self.error = self.error or result
            self.failed_entries += entries
            if self.by_mark:
                continue
            if isinstance(result, AppendOutcomeUnknown):
                _extend(self.unknown, first, end - 1)
                self._landed_end = end
            else:
                _extend(self.failed, first, end - 1)

    @property
    def missing(self) -> list[Range]:
        """What is not durable while something behind it is, or may be: to be produced by itself."""
        return [gap for gap in self.failed if gap[0] < self._landed_end]

    @property
    def resume_at(self) -> int | None:
        """From here on nothing is in the queue, and everything is to be produced. None if the input was done with."""
        if self.by_mark:
            return None
        place = next((first for first, _ in self.failed if first >= self._landed_end), self.read)
        return None if self.ended and place == self.read else place

    @property
    def first_failed_entry(self) -> int | None:
        return min((first for first, _ in (*self.failed, *self.unknown)), default=None)

    def forget_failed(self) -> None:
        """What failed is tried again: it counts neither as durable nor as failed."""
        self.settle()
        self._pending.clear()
        self.error, self.failed_entries = None, 0

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
            "missing": self.missing,
            "unknown": self.unknown,
            "resume_at": self.resume_at,
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
@click.option("--metadata", default="", help="Text that goes with every record, into the column _entry_metadata.")
@click.option("--client-id", metavar="NAME", help="With --from: the name under which the queue knows how far it is.")
@click.option(
    "--from",
    "resumed",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="A file, or a folder of files: whatever is not in the queue yet. Needs --client-id.",
)
@click.option("--growing", is_flag=True, help="With --from: leave a last record that lacks its end for a later run.")
@json_option
def produce(
    files: tuple[Path, ...],
    length_prefixed: bool,
    skip_empty: bool,
    metadata: str,
    client_id: str | None,
    resumed: Path | None,
    growing: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Put records into a queue: every line of stdin, or of FILE..., is one.

    It ends with 0 only if every record is durable: uploaded, and in the queue's manifest.

    \b
    Examples:
      echo '{"id": 1}' | buffer produce --store ./queue
      buffer produce --store s3://bucket/events --compression zstd *.jsonl
      tail -f app.log | buffer produce --store ./queue --flush-interval-ms 1000
      ./export --binary | buffer produce --store ./queue --length-prefixed
      buffer produce --store ./queue --client-id exports --from ./exports

    Ctrl-C stops reading and flushes the whole records that were read. After a failure the summary says which records
    are not durable, and at which to go on. Batches behind a failed one may be durable all the same: produce what is
    listed as missing by itself, and nothing twice. Numbers count every record of the input from 0, also the empty
    ones that --skip-empty leaves out: `tail -n +43 file` begins at number 42, `sed -n 11,20p file` prints 10..19.

    With --client-id and --from each record gets into the queue once, however often the command is killed: run it
    again, and it goes on where the queue says that it is. Records may be added at the end of a file, not changed. A
    last line without its end counts as a record, and what is added to it later is never looked at: for files that
    another program is still writing pass --growing.
    In a folder every file counts by itself, under its path; files whose names begin with a dot are left out, and so
    are links to folders, and to files that are there anyway. One that is renamed, as logs are when they are rotated,
    is a new one, and all of its records get into the queue again.
    """
    config = settings(ProducerConfig, options)
    clock, tally, signals = SystemClock(), Tally(), _Signals()
    started_s = clock.monotonic_s()
    reader: Reader = partial(read_length_prefixed if length_prefixed else read_lines, growing=growing)
    trouble: Exception | None = None
    payload = metadata.encode("utf-8", "surrogateescape")  # an argument may hold any bytes, and they stay as they are
    if (client_id is None) != (resumed is None) or (resumed is not None and files):
        raise click.UsageError("--client-id and --from PATH go together, and with no other FILE")
    if growing and resumed is None:
        raise click.UsageError("--growing needs --from PATH: otherwise nobody comes back for the last record")
    if resumed is None and not files and sys.stdin is None:
        raise InvalidInput("stdin is closed, so there is nothing to read: pipe the records in, or name files")
    run = _Run(config, reader, signals, tally, leaves_line=growing and not length_prefixed)
    with signals.heeded():
        try:
            if client_id is not None and resumed is not None:
                tally.by_mark = True
                run.produce_all(sources(resumed, client_id), payload, skip_empty=skip_empty)
            else:
                _produce_new(files, run, payload, skip_empty=skip_empty)
        except (BufferQueueError, OSError) as error:  # of the input; what came before it still counts
            trouble = error
        tally.settle()
        _print_summary(tally, clock.monotonic_s() - started_s, as_json)
    if tally.error and trouble and str(tally.error) not in str(trouble):
        echo(f"error: {describe(trouble)}", err=True)
    if failure := tally.error or trouble:
        raise failure
    return signals.code or DONE


@dataclass
class _Run:
    """One run of the command: what `resume.Run` asks for."""

    config: ProducerConfig
    reader: Reader
    signals: _Signals
    tally: Tally
    leaves_line: bool = False
    """A last line that lacks its end is no record yet."""
    bar: Bar | None = None
    """Over all files of a folder."""
    done_bytes: int = 0
    """Of the files before the one in hand."""

    def read(self, *files: Path) -> Iterator[list[bytes]]:
        if self.bar is not None:  # a file that is read once more begins anew
            self.bar[0].update(self.bar[1], completed=self.done_bytes)
        records = _records(files, self.reader, self.config, self.signals, self.bar)
        return self.signals.until_stopped(calls(records, self.config.max_batch_bytes))

    def left(self, path: Path) -> int:
        if not self.leaves_line or not path.is_file() or not path.stat().st_size:
            return 0
        with path.open("rb") as file:
            file.seek(-1, SEEK_END)
            return int(file.read() != b"\n")

    def produce_all(self, files: Sequence[Source], payload: bytes, *, skip_empty: bool) -> None:
        """What the queue does not have of these files, under one bar."""
        with _progress([source.path for source in files]) as self.bar:
            for source in files:
                if self.is_over:
                    return
                size = source.path.stat().st_size
                produce_source(source, self.config, self, payload, skip_empty=skip_empty)
                self.done_bytes += size

    def sent(self, handle: WriteHandle, first: int, end: int, records: list[bytes]) -> None:
        self.tally.add(handle, first, end, len(records), sum(map(len, records)))

    def overtaken(self) -> None:
        self.tally.forget_failed()

    @property
    def is_over(self) -> bool:
        return self.tally.error is not None or self.signals.came()


def _produce_new(files: tuple[Path, ...], run: _Run, payload: bytes, *, skip_empty: bool) -> None:
    tally, producer = run.tally, Producer(run.config)
    try:
        for records in run.read(*files):
            kept = [record for record in records if record] if skip_empty else records
            tally.skipped_empty += len(records) - len(kept)
            if kept:
                first = tally.read + next(place for place, record in enumerate(records) if record or not skip_empty)
                run.sent(producer.produce(kept, payload), first, tally.read + len(records), kept)
            tally.read += len(records)
            if tally.error:
                break
        else:
            tally.ended = not run.signals.came()
    finally:
        _close(producer)


def _close(producer: Producer) -> None:
    """Flush. What failed is known to the handles, each batch by itself, so the tally tells it better."""
    try:
        producer.close()
    except BufferQueueError:
        return


def _records(
    files: Iterable[Path], reader: Reader, config: ProducerConfig, signals: _Signals, bar: Bar | None = None
) -> Iterator[list[bytes]]:
    limit = min(CHUNK_BYTES, config.flush_size_bytes)  # or one call would make a batch far larger than asked for
    if not files:
        if is_terminal(sys.stdin):
            echo("reading from the terminal; Ctrl-D ends the input", err=True)
            yield from reader(read_chunks(sys.stdin.fileno(), limit, signals.came), config.max_batch_bytes)
            return
        with _progress(None) as (progress, task):
            chunks = _counted(read_chunks(sys.stdin.fileno(), limit, signals.came), progress, task)
            yield from reader(chunks, config.max_batch_bytes)
        return
    with _progress(files) if bar is None else nullcontext(bar) as (progress, task):
        for path in files:
            with signals.open(path) as file:
                chunks = _counted(read_chunks(file.fileno(), limit, signals.came), progress, task)
                yield from reader(chunks, config.max_batch_bytes)


def _counted(chunks: Iterable[bytes], progress: Progress, task: TaskID) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        progress.advance(task, len(chunk))


@contextmanager
def _progress(files: Iterable[Path] | None) -> Iterator[Bar]:
    """Bytes read, of all that there are where that is known: of a pipe it is not."""
    columns = (TextColumn("producing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    total = None if files is None else sum(path.stat().st_size for path in files)
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
                "not durable": plural(tally.failed_entries, "entries") if tally.failed_entries else None,
                "missing": _ranges(tally.missing, "not durable, but what comes after is: produce them by themselves"),
                "unknown": _ranges(tally.unknown, "in the queue or not: look before you produce them again"),
                "go on": f"at record {tally.resume_at:,}, counted from 0" if tally.resume_at is not None else None,
                "left out": f"{tally.skipped_empty:,} empty" if tally.skipped_empty else None,
            }
        )


def _extend(ranges: list[Range], first: int, last: int) -> None:
    """Add a range, to the one before it if they touch."""
    if ranges and ranges[-1][1] + 1 == first:
        first = ranges.pop()[0]
    ranges.append((first, last))


def _ranges(ranges: list[Range], what: str) -> str | None:
    if not ranges:
        return None
    shown = ", ".join(f"{first}..{last}" for first, last in ranges[:RANGES_SHOWN_MAX])
    more = f" and {len(ranges) - RANGES_SHOWN_MAX:,} more (--json lists all)" if len(ranges) > RANGES_SHOWN_MAX else ""
    return f"records {shown}{more}, counted from 0: {what}"
