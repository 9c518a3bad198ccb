"""`buffer migrate`: moves a queue of the older format into a new one. What it does, and why, is in `legacy.migration`.

Killed at any moment, run it again: it goes on where it was. Failures of the stores that may pass are waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from buffer.backoff import Backoff
from buffer.cli.interrupts import InterruptibleClock
from buffer.cli.older import reader
from buffer.cli.options import parse_sets, parse_store_options, settings
from buffer.cli.printing import echo, is_terminal, print_facts, print_json, print_table, track
from buffer.cli.shell import DONE, FAILED, INTERVAL, Seconds, describe, json_option, session_options
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.errors import BufferQueueError, ContentionError, InvalidInput, ProducerStopped, QueueFull, StorageError
from buffer.inspect.human import human_bytes, human_time, plural
from buffer.inspect.legacy import State, check_pairs, legacy_status, still_bad
from buffer.legacy.config import DEFAULT_MANIFEST_PATH, CollectorConfig
from buffer.legacy.migration import READS_AT_ONCE, WINDOW_BATCHES, Migration, Step
from buffer.legacy.new_queue import NewQueue
from buffer.produce.producer import Producer
from buffer.store.base import Store
from buffer.store.open import open_store

RETRIES = Backoff(first_s=0.5, max_s=30.0, attempts_max=12)
"""Of one window. Then it ends with 1, and whoever runs it may run it again."""


@click.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--old-manifest",
    metavar="PATH",
    default=DEFAULT_MANIFEST_PATH,
    show_default=True,
    help="The producer manifest of the old queue.",
)
@click.option("--manifest", "manifest_path", metavar="PATH", help="Of the new queue. [default: ingest/manifest]")
@click.option("--prefix", "data_path_prefix", metavar="PATH", help="Folder of its batches. [default: the manifest's]")
@click.option(
    "--store-option",
    "store_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_store_options,
    help="Passed on to both stores, like endpoint=http://localhost:8333. Repeatable.",
)
@click.option(
    "--old-store-option",
    "old_store_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_store_options,
    help="Passed on to the old queue's store alone, and then --store-option to the new one's alone.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_sets,
    help='Any setting of the producer that writes the new queue: --set compression="zstd". Repeatable.',
)
@click.option(
    "--heartbeat-timeout-s",
    type=Seconds(0.003),
    default=30.0,
    show_default=True,
    help="A Collector's claim that was not refreshed for so long is taken over. All of a queue use the same.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 10_000),
    default=WINDOW_BATCHES,
    show_default=True,
    help="Batches moved together.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on while writers still run, until Ctrl-C.")
@click.option("--interval-s", type=INTERVAL, default=1.0, show_default=True, help="How often to look for more.")
@click.option("-n", "--dry-run", is_flag=True, help="Read it all, say what would be moved, and change nothing.")
@click.option(
    "--give-back",
    is_flag=True,
    help="Let Collectors have the old queue again: give up what was taken and is not moved. Stop every migrate first.",
)
@session_options
@json_option
def migrate(old: str, new: str, dry_run: bool, give_back: bool, as_json: bool, **options: Any) -> int:
    """Move a queue of the older format (two manifests, JSON batches) into a new queue.

    Every key-value pair gets into the new queue once, in the order of the old one, however often this is killed and
    run again; several may run at once. A pair is one entry: see docs/older-format.md; `buffer-delta load --format
    keyvalue` brings them into a table as key and value.

    \b
    Examples:
      buffer migrate s3://bucket/old s3://bucket/new --dry-run
      buffer migrate s3://bucket/old s3://bucket/new --follow     while writers still run
      buffer migrate s3://bucket/old s3://bucket/new              once they have stopped: the rest

    Stop the Collectors of the old queue first. One that is at work keeps what it has claimed; the rest waits behind it
    to keep the order.

    A batch that cannot be read is parked: it stays in the old queue, and is named at the end with exit code 1. When it
    is repaired, `Collector.unpark` lets it be tried again. Moved batches are deleted from the old queue.
    """
    timeout_ms = round(options["heartbeat_timeout_s"] * 1000)
    old_options = options["old_store_options"] or options["store_options"]
    old_store = open_store(old, **old_options)
    produce = settings(ProducerConfig, {**options, "store": new})
    collect = CollectorConfig(
        store=old_store,
        manifest_path=options["old_manifest"],
        heartbeat_timeout_ms=timeout_ms,
        max_batch_bytes=max(CollectorConfig.max_batch_bytes, 2 * produce.max_batch_bytes),  # base64 takes 4/3
    )
    if dry_run:
        return _dry_run(old_store, collect, as_json=as_json)
    found = legacy_status(old_store, collect.manifest_path)  # before a new queue is made for nothing
    if give_back and found.moves is None:
        raise InvalidInput(f"nobody has begun to migrate {collect.manifest_path!r}: there is nothing to give back")
    clock = InterruptibleClock()
    new_store = open_store(new, **produce.store_options)
    target = NewQueue(new_store, produce, clock, lambda client_id: Producer(produce, client_id=client_id))
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="buffer-migrate") as pool:
        migration = Migration(old_store, collect, clock, target, window=options["window"], mapper=pool.map)
        begun = migration.open()
        if begun.batches or begun.open:
            echo(f"going on after {plural(begun.batches, 'batches')}, {plural(begun.pairs, 'pairs')}", err=True)
        try:
            if give_back:
                given = migration.give_back()
                print_json({"given_back": given}) if as_json else echo(f"{plural(given, 'batches')} given back")
                return DONE
            run = _Run(migration, old_store, collect, clock, options["interval_s"])
            with run.progress():
                run.run(follow=options["follow"])
        finally:
            migration.close()
    return run.report(as_json=as_json)


class _Run:
    """One run of the command: what it moved, and what it says on the way."""

    def __init__(
        self, migration: Migration, store: Store, config: CollectorConfig, clock: InterruptibleClock, interval_s: float
    ) -> None:
        self.batches = 0
        self.pairs = 0
        self._migration = migration
        self._store = store
        self._config = config
        self._clock = clock
        self._interval_s = interval_s
        self._tell: Callable[[Step], None] = self._tell_line
        self._waits_for: tuple[str, int] | None = None

    def run(self, *, follow: bool) -> None:
        while True:
            step = self._step()
            self.batches += step.batches
            self.pairs += step.pairs
            self._tell(step)
            if step.batches:
                continue
            if not step.line.left and not follow:
                break
            self._say_what_it_waits_for(step)
            self._clock.sleep(self._interval_s)
        self._migration.clean_up()

    def _step(self) -> Step:
        trouble: BufferQueueError | None = None
        for _ in RETRIES.attempts(self._clock):
            try:
                return self._migration.step()
            except (ContentionError, ProducerStopped, QueueFull, StorageError) as error:
                if isinstance(error, StorageError) and not error.retryable:
                    raise
                trouble = error
                echo(f"warning: trying again: {describe(error)}", err=True)
        assert trouble is not None, "there is at least one attempt"
        raise trouble

    def _say_what_it_waits_for(self, step: Step) -> None:
        if step.line.behind in (None, self._waits_for):
            return
        self._waits_for = step.line.behind
        assert self._waits_for is not None
        location, claimed_ms = self._waits_for
        echo(
            f"waiting for {location}, which a Collector claimed {human_time(claimed_ms)}: it is taken over when it is "
            f"not refreshed for {self._config.heartbeat_timeout_ms / 1000:g} s",
            err=True,
        )

    # Progress

    @contextmanager
    def progress(self) -> Iterator[None]:
        """A bar on a terminal; else a line for each window."""
        if not is_terminal(sys.stderr):
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("moving batches", total=None)

            def draw(step: Step) -> None:
                bar.update(task, completed=self.batches, total=self.batches + step.line.left)

            self._tell = draw
            try:
                yield
            finally:
                self._tell = self._tell_line

    def _tell_line(self, step: Step) -> None:
        if step.batches:
            left = plural(step.line.left, "batches")
            echo(f"moved {self.batches:,} batches, {plural(self.pairs, 'pairs')}; {left} left", err=True)

    # The end

    def report(self, *, as_json: bool) -> int:
        found = legacy_status(self._store, self._config.manifest_path)
        parked = self._migration.parked()
        moves = found.moves
        assert moves is not None, "it was there while we worked"
        if as_json:
            print_json(
                {
                    "batches": self.batches,
                    "pairs": self.pairs,
                    "all_batches": moves.batches,
                    "all_pairs": moves.pairs,
                    "left": len(found.waiting) - found.count(State.PARKED),
                    "parked": [{"location": where, "why": what.why} for where, what in parked.items()],
                    "target": moves.target,
                    "client_id": moves.client_id,
                }
            )
            return FAILED if parked else DONE
        if parked:
            print_table(["parked", "why"], [(where, what.why) for where, what in parked.items()])
        print_facts(
            {
                "moved": f"{plural(self.batches, 'batches')}, {plural(self.pairs, 'pairs')}",
                "in all runs": f"{plural(moves.batches, 'batches')}, {plural(moves.pairs, 'pairs')}",
                "parked": f"{plural(len(parked), 'batches')} that cannot be moved, see above" if parked else None,
                "new queue": f"id {moves.target}, client {moves.client_id}",
            }
        )
        return FAILED if parked else DONE


def _dry_run(store: Store, config: CollectorConfig, *, as_json: bool) -> int:
    look = partial(legacy_status, store, config.manifest_path, timeout_ms=config.heartbeat_timeout_ms)
    seen = look()
    handle = reader(ConsumerConfig(store=store), store)
    checked = list(track(check_pairs(handle, seen.waiting, READS_AT_ONCE), total=len(seen.waiting), label="reading"))
    bad = still_bad(checked, look())
    good = [item for item in checked if item.problem is None]
    pairs, size = sum(item.pairs for item in good), sum(item.bytes for item in good)
    if as_json:
        print_json(
            {
                "batches": len(good),
                "pairs": pairs,
                "bytes": size,
                "claimed": seen.count(State.CLAIMED),
                "unreadable": [{"location": b.location, "problem": b.problem, "error": b.error} for b in bad],
            }
        )
    else:
        if bad:
            print_table(["problem", "location", "error"], [(b.problem, b.location, b.error) for b in bad])
        claimed = seen.count(State.CLAIMED)
        print_facts(
            {
                "would move": f"{plural(len(good), 'batches')}, {plural(pairs, 'pairs')}, {human_bytes(size)}",
                "claimed": f"{plural(claimed, 'batches')} of them, by Collectors that are at work" if claimed else None,
                "would park": f"{plural(len(bad), 'batches')} that cannot be read" if bad else None,
            }
        )
    return FAILED if bad else DONE
