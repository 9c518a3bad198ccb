"""`buffer leases …`: a queue that workers share, from the command line. See `buffer.leases.queue`.

Every command but `consume` and `configure` joins the workers and never takes the queue over from another reader;
`status` and `peek` only look, and change nothing at all.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from buffer.cli.look import open_queue
from buffer.cli.options import parse_sets, queue_options
from buffer.cli.printing import counting, echo, print_facts, print_json, print_table
from buffer.cli.shell import OrderedGroup, json_option
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, LeaseConfig
from buffer.errors import InvalidInput, ObjectNotFound
from buffer.inspect.human import human_time, plural
from buffer.inspect.status import read_manifest
from buffer.leases.queue import LeaseQueue
from buffer.leases.session import NoLeases
from buffer.leases.values import LeasedBatch, LeaseStats, Peeked, peeked, stats_of
from buffer.ledger.from_workers import loader_of, still_theirs
from buffer.ledger.lease_rules import Ack, Nack
from buffer.ledger.lease_steps import is_finished
from buffer.ledger.leases import Handle, LeaseLedger, Leases
from buffer.ledger.ranges import Runs
from buffer.manifest import Manifest
from buffer.names import ledger_path


@click.group(cls=OrderedGroup)
def leases() -> None:
    """Many workers on one queue: leases, delivery counts, dead letters.

    \b
    Try it:
      buffer leases configure --store ./queue visibility_timeout_ms=60000 dlq=dead/manifest dlq_strategy=skip
      buffer leases consume   --store ./queue --json
      buffer leases ack       --store ./queue LEASE SEQUENCE
      buffer leases status    --store ./queue
    """


# Looking


@leases.command()
@queue_options
@json_option
def status(as_json: bool, **options: Any) -> None:
    """Show how many batches wait, are leased, delayed, blocked or parked. Changes nothing.

    \b
    Example:
      buffer leases status --store ./queue --json | jq .in_flight
    """
    config, section, manifest, is_theirs = _look(options)
    stats = stats_of(section, manifest.next_sequence, SystemClock().now_ms())
    if as_json:
        settings = dataclasses.asdict(section.config)
        told = {"epoch": section.epoch, "taken_over": not is_theirs, "settings": settings}
        print_json({**dataclasses.asdict(stats), **told})
    else:
        print_facts(_facts(config, section, stats))


@leases.command()
@queue_options
@click.option("--max", "max_batches", type=click.IntRange(min=1), default=20, show_default=True)
@json_option
def peek(max_batches: int, as_json: bool, **options: Any) -> None:
    """List the oldest unfinished batches: who holds them, how often they were delivered, why they came back.

    \b
    Example:
      buffer leases peek --store ./queue --max 5
    """
    _, section, manifest, _ = _look(options)
    now_ms = SystemClock().now_ms()
    found: list[Peeked] = []
    for entry in manifest.entries_from(section.finished_through + 1):
        if len(found) == max_batches:
            break
        if not is_finished(section, entry.sequence):
            found.append(peeked(section, entry.sequence, entry.location, now_ms))
    if as_json:
        print_json([{**dataclasses.asdict(item), "phase": item.phase.value} for item in found])
        return
    print_table(
        ["sequence", "state", "deliveries", "lease", "until", "owed", "reason"],
        [
            (b.sequence, b.phase.value, b.delivery_count, b.lease_id or "", _time(b.until_ms), _runs(b.owed), b.reason)
            for b in found
        ],
        right=["sequence", "deliveries"],
    )


# Working


@leases.command()
@queue_options
@click.option("--max", "max_batches", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--wait-ms", type=click.IntRange(min=0), default=0, show_default=True, help="Wait for something to come.")
@json_option
def consume(max_batches: int, wait_ms: int, as_json: bool, **options: Any) -> None:
    """Lease batches and print them: their handles, and with --json their entries.

    The lease holds when the command has ended: ack, nack or extend it by its id, or it runs out.

    \b
    Example:
      buffer leases consume --store ./queue --max 2 --json
    """
    with _open(options, claim=True) as queue:
        delivered = queue.consume(max_batches, wait_ms)
    if as_json:
        document = {"lease_id": delivered.lease_id, "batches": [_batch(b) for b in delivered]}
        print_json({**document, "unreadable": list(delivered.unreadable)})
    elif not delivered:
        echo("nothing to deliver", err=True)
    else:
        print_table(
            ["lease", "sequence", "deliveries", "until", "entries"],
            [(b.lease_id, b.sequence, b.delivery_count, _time(b.until_ms), len(b.indices)) for b in delivered],
            right=["sequence", "deliveries", "entries"],
        )


@leases.command()
@queue_options
@click.argument("lease_id")
@click.argument("sequences", nargs=-1, required=True, type=click.IntRange(min=0))
@click.option("--entries", metavar="INDICES", help="Only these entries of one batch, like 0,3,7; with --of.")
@click.option("--of", "entry_count", type=click.IntRange(min=1), help="How many entries the batch has.")
def ack(lease_id: str, sequences: Sequence[int], entries: str | None, entry_count: int | None, **options: Any) -> None:
    """These batches are done, all of them in one write.

    \b
    Example:
      buffer leases ack --store ./queue 7K3M9QX2ZB-42 17 18
    """
    indices = None if entries is None else _indices(entries)
    if indices is not None and (entry_count is None or len(sequences) != 1):
        raise InvalidInput("--entries are of one batch: name one sequence, and with --of how many entries it has")
    with _open(options) as queue:
        queue.ack([Ack(Handle(lease_id, sequence), indices, entry_count) for sequence in sequences])


@leases.command()
@queue_options
@click.argument("lease_id")
@click.argument("sequences", nargs=-1, required=True, type=click.IntRange(min=0))
@click.option("--delay-ms", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--reason", default="", help="Kept with the batch, and in the dead letter.")
def nack(lease_id: str, sequences: Sequence[int], delay_ms: int, reason: str, **options: Any) -> None:
    """These batches failed: deliver them again, after the delay.

    \b
    Example:
      buffer leases nack --store ./queue 7K3M9QX2ZB-42 17 --delay-ms 5000 --reason "no luck"
    """
    with _open(options) as queue:
        queue.nack([Nack(Handle(lease_id, sequence), delay_ms, reason) for sequence in sequences])


@leases.command()
@queue_options
@click.argument("lease_id")
@click.argument("sequences", nargs=-1, required=True, type=click.IntRange(min=0))
@click.option("--additional-ms", type=click.IntRange(min=0), help="[default: the queue's visibility timeout]")
def extend(lease_id: str, sequences: Sequence[int], additional_ms: int | None, **options: Any) -> None:
    """Hold these batches for longer.

    \b
    Example:
      buffer leases extend --store ./queue 7K3M9QX2ZB-42 17
    """
    with _open(options) as queue:
        queue.extend([Handle(lease_id, sequence) for sequence in sequences], additional_ms)


# Operating


@leases.command()
@queue_options
@click.argument("sequence", type=click.IntRange(min=0))
@click.option("--attempts", type=click.IntRange(min=1), default=1, show_default=True)
def unblock(sequence: int, attempts: int, **options: Any) -> None:
    """Deliver a blocked batch so many times more.

    \b
    Example:
      buffer leases unblock --store ./queue 17 --attempts 2
    """
    with _open(options) as queue:
        queue.unblock(sequence, attempts)


@leases.command()
@queue_options
@click.argument("sequence", type=click.IntRange(min=0))
@click.option("--reason", default="given up by hand", show_default=True)
def park(sequence: int, reason: str, **options: Any) -> None:
    """Give a batch up: into the dead-letter queue with it.

    \b
    Example:
      buffer leases park --store ./queue 17
    """
    with _open(options) as queue:
        is_done = queue.park(sequence, reason)
    echo("parked" if is_done else "will be parked: another worker is at it", err=True)


@leases.command()
@queue_options
@click.option(
    "--max-per-second", type=click.FloatRange(min=0, min_open=True), help="Batches; as fast as it goes unless given."
)
@click.option("--max", "max_batches", type=click.IntRange(min=1), help="Stop after so many batches.")
@json_option
def redrive(max_per_second: float | None, max_batches: int | None, as_json: bool, **options: Any) -> None:
    """Bring the dead letters back into the queue, each exactly once. May be interrupted and repeated.

    \b
    Example:
      buffer leases redrive --store ./queue --max-per-second 10
    """
    with _open(options) as queue, counting("redriving", max_batches) as moved_one:
        moved = queue.redrive(max_per_second, max_batches, on_moved=moved_one)
    if as_json:
        print_json({"redriven": moved})
    else:
        echo(f"{plural(moved, 'batches')} back in the queue", err=True)


@leases.command()
@queue_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def purge(yes: bool, as_json: bool, **options: Any) -> None:
    """Finish everything that waits, unseen. Nobody gets it back.

    \b
    Example:
      buffer leases purge --store ./queue --yes
    """
    with _open(options) as queue:
        if not yes:
            click.confirm(f"drop {plural(queue.stats().depth, 'batches')} unseen?", abort=True, err=True)
        count = queue.purge()
    if as_json:
        print_json({"purged": count})
    else:
        echo(f"{plural(count, 'batches')} dropped", err=True)


@leases.command()
@queue_options
@click.argument("changes", nargs=-1, callback=parse_sets, metavar="[KEY=VALUE]...")
@click.option("--adopt", is_flag=True, help="Also on a queue that a plain consumer has read; that one is fenced.")
@json_option
def configure(changes: dict[str, Any], adopt: bool, as_json: bool, **options: Any) -> None:
    """Change the queue's settings for all its workers, or make it a queue with leases.

    \b
    Settings: visibility_timeout_ms, max_delivery_attempts, dlq_strategy (skip, block, block_and_dlq), dlq,
    max_ack_holes, max_in_flight, max_depth, ordering_required. `docs/configuration.md` explains them. The others
    stay as they are; `dlq=` leaves the queue without a dead-letter queue.

    \b
    Examples:
      buffer leases configure --store ./queue visibility_timeout_ms=60000
      buffer leases configure --store ./queue dlq_strategy=block dlq=
    """
    changes = {key: None if (key, value) == ("dlq", "") else value for key, value in changes.items()}
    config, _ = open_queue(options)
    try:
        queue = LeaseQueue.open(_quiet(config), claim=False)
    except NoLeases:
        queue = LeaseQueue.open(_quiet(config), LeaseConfig.from_dict(changes), adopt=adopt)
    else:
        if changes:
            queue.configure(**changes)
    with queue:
        settings = dataclasses.asdict(queue.settings)
    if as_json:
        print_json(settings)
    else:
        print_facts({name: str(value) for name, value in settings.items()})


# Parts


def _open(options: dict[str, Any], *, claim: bool = False) -> LeaseQueue:
    config, _ = open_queue(options)
    return LeaseQueue.open(_quiet(config), claim=claim)


def _quiet(config: ConsumerConfig) -> ConsumerConfig:
    """Without a collector: a command ends before it could look twice."""
    return config.replace(gc_enabled=False)


def _look(options: dict[str, Any]) -> tuple[ConsumerConfig, Leases, Manifest, bool]:
    """What stands, with nothing joined or claimed, and whether the queue is still the workers'. Says if it is not."""
    config, store = open_queue(options)
    path = ledger_path(config.manifest_path)
    try:
        ledger: LeaseLedger | None = LeaseLedger.from_bytes(store.get(path).data, location=path)
    except ObjectNotFound:
        ledger = None
    found = None if ledger is None else ledger.leases
    if ledger is None or found is None:
        raise NoLeases(
            f"the queue {config.manifest_path!r} has no leases: make it one with `buffer leases configure`",
            key="leases",
            value=None,
        )
    manifest = read_manifest(store, config.manifest_path)  # after the ledger: it is never behind it
    app_id = loader_of(ledger)
    is_theirs = still_theirs(found, ledger_epoch=ledger.epoch, queue_epoch=manifest.epoch, app_id=app_id) is not None
    if not is_theirs:
        reader = "another reader" if app_id is None else f"the loader {app_id!r}"
        echo(f"note: {reader} has this queue; this is how workers left it", err=True)
    return config, found, manifest, is_theirs


def _facts(config: ConsumerConfig, section: Leases, stats: LeaseStats) -> dict[str, object]:
    blocked = ", ".join(map(str, stats.blocked_sequences[:10]))
    settings = section.config
    return {
        "queue": config.manifest_path,
        "waiting": f"{plural(stats.depth, 'batches')}, {stats.ready:,} to be had now",
        "in flight": f"{stats.in_flight:,} of {settings.max_in_flight:,}",
        "delayed": f"{stats.delayed:,}",
        "blocked": f"{stats.blocked:,}" + (f": {blocked}; `buffer leases unblock` or `park`" if blocked else ""),
        "parking": f"{stats.parking:,} on their way, {stats.parked:,} ever",
        "holes": f"{stats.holes:,} of {settings.max_ack_holes:,}",
        "finished": f"through {stats.finished_through:,} of {stats.next_sequence:,}",
        "time": human_time(stats.time_ms),
        "clock": f"{stats.clock_behind_ms / 1000:g} s behind the queue's time"
        if stats.clock_behind_ms > 1_000
        else None,
        "dead letters": settings.dlq,
    }


def _batch(leased: LeasedBatch) -> dict[str, Any]:
    return {
        "sequence": leased.sequence,
        "lease_id": leased.lease_id,
        "delivery_count": leased.delivery_count,
        "until_ms": leased.until_ms,
        "entry_count": len(leased.batch),
        "entries": [
            {"index": index, "base64": base64.b64encode(entry).decode()}
            for index, entry in zip(leased.indices, leased.entries, strict=True)
        ],
    }


def _indices(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"--entries {text!r}: indices, separated by commas, like 0,3,7") from error


def _time(time_ms: int | None) -> str:
    return human_time(time_ms) or ""


def _runs(owed: Runs | None) -> str:
    if owed is None:
        return "all"
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in owed)
