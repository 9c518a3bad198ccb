"""`buffer-delta status` and `unblock`: queue, ledger and tables side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from buffer.cli.look import open_queue
from buffer.cli.options import LOADER_TABLES, queue_options
from buffer.cli.printing import echo, print_facts, print_json, print_table
from buffer.cli.shell import INTERVAL, json_option
from buffer.clock import SystemClock
from buffer.config import QueueConfig
from buffer.inspect.human import plural
from buffer.inspect.status import QueueStatus, queue_status, read_manifest
from buffer.ledger.entries import count
from buffer.ledger.plan import Ledger, may_be_replanned, waits_for
from buffer_delta.cli.spark import running_spark, spark_options
from buffer_delta.delta.state import NOTHING
from buffer_delta.errors import RouteChanged
from buffer_delta.load.plans import Plans
from buffer_delta.serve.status import STUCK_S, Limits, TableStatus
from buffer_delta.serve.watch import one_look
from buffer_delta.spark.s3a import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buffer_delta.delta.orphans import Orphan


@click.command(short_help="What waits, what is loaded, and what is wrong.")
@queue_options
@spark_options
@click.option("--max-lag-s", type=INTERVAL, help="Say `behind` if the oldest entry has waited for longer.")
@click.option(
    "--stuck-s",
    type=INTERVAL,
    default=STUCK_S,
    show_default=True,
    help="Say `stuck` of a range that was tried before if the oldest entry has waited for longer.",
)
@click.option("--orphans", "with_orphans", is_flag=True, help="List data files that no version of a table refers to.")
@json_option
def status(max_lag_s: float | None, stuck_s: float, with_orphans: bool, as_json: bool, **options: Any) -> None:
    """Compare a queue, its ledger and its tables: what is loaded, what is not, what is in the way.

    Nothing is claimed and nothing is changed. The tables are those that the ledger names. `buffer status` shows
    the queue's side alone, and does not need Spark.

    With --orphans, each table's folder is listed and compared with its log: files of attempts that never committed.
    Nobody reads them and VACUUM removes them; those of a loader that is at work look the same until it commits.

    \b
    Examples:
      buffer-delta status --store ./queue
      buffer-delta status --store s3://bucket/events --json | jq '.tables[].lag_batches'
    """
    config, store = open_queue(options, LOADER_TABLES)
    found = queue_status(store, config.manifest_path, data_path_prefix=config.data_path_prefix)
    tables: list[TableStatus] = []
    left: dict[str, list[Orphan]] = {}
    if found.ledger and found.ledger.app_id:
        places = Places(found.ledger.tables, config.store, config.store_options)
        with running_spark("buffer-delta status", loads=places, **_spark_settings(options)) as spark:
            tables = _table_statuses(spark, found)
            left = {name: _orphans(spark, at) for name, at in _where(found.ledger).items()} if with_orphans else {}
    seen = one_look(store, config, found, tuple(tables), limits=Limits(stuck_s=stuck_s, max_lag_s=max_lag_s))
    if as_json:
        orphans = {name: [dataclasses.asdict(each) for each in files] for name, files in left.items()}
        print_json({**seen.to_dict(), **({"orphans": orphans} if with_orphans else {})})
        return
    facts = found.facts()
    if tables and found.plan is not None and found.plan_state == "dequeued":
        facts["plan"] = f"{found.plan.first}..{found.plan.last} is no longer in the queue; the tables below tell more"
    print_facts({"state": f"{seen.state}: {seen.reason}", **facts})
    if tables:
        echo()
        print_table(
            ["table", "last loaded from", "batches behind", ""],
            [
                (t.table, "nothing" if t.committed is None else t.committed, t.lag_batches, t.problem or "")
                for t in tables
            ],
            right=["last loaded from", "batches behind"],
        )
    if with_orphans:
        _print_orphans(left)


def _where(ledger: Ledger) -> dict[str, str]:
    """What to open for each of the ledger's tables. A path may be relative to a folder that is not this one: were the
    table looked for here, it would seem to be gone, and to hold nothing."""
    places = ledger.places or ledger.tables
    return {
        name: place if place.startswith("file:") else name for name, place in zip(ledger.tables, places, strict=True)
    }


def _print_orphans(left: Mapping[str, Sequence[Orphan]]) -> None:
    echo()
    rows = [(name, each.path, each.size_bytes, each.written_at()) for name, files in left.items() for each in files]
    if not rows:
        echo("no orphans: every data file is in some version of its table")
        return
    print_table(["table", "orphan", "bytes", "written"], rows, right=["bytes"])
    echo(f"{plural(len(rows), 'files')} that no version refers to; VACUUM removes them once they are old enough")


def _orphans(spark: SparkSession, name: str) -> list[Orphan]:
    from buffer_delta.delta.table import DeltaTarget

    return DeltaTarget(spark, name).orphans()


def _table_statuses(spark: SparkSession, queue: QueueStatus) -> list[TableStatus]:
    """The main table first. It tells how far the queue is loaded; the others are behind where they got nothing."""
    from buffer_delta.delta.table import DeltaTarget

    ledger = queue.ledger
    assert ledger is not None, "the caller looked"
    seen = [DeltaTarget(spark, at).look(ledger.app_id or "") for at in _where(ledger).values()]
    places = ledger.places or ledger.tables
    behind = max(0, queue.next_sequence - 1 - seen[0].position)
    found = []
    for name, place, state in zip(ledger.tables, places, seen, strict=True):
        planned_id = queue.plan.table_ids.get(place) if queue.plan else None
        problem = None
        if planned_id is not None and state.table_id != planned_id:
            problem = "dropped since the last commit" if state.table_id is None else "dropped and made again since"
        elif state.rewrite:
            problem = f"{state.rewrite.operation} at version {state.rewrite.version} took rows back"
        elif state is seen[0] and state.position < queue.first_sequence - 1:
            problem = f"a gap: the queue goes on at {queue.first_sequence}"
        committed = None if state.position == NOTHING else state.position
        found.append(TableStatus(name, state.version is not None, committed, behind, problem, state.version))
    return found


@click.command()
@queue_options
@click.option(
    "--skip",
    is_flag=True,
    help="Give the bad batches and entries up: they go to the dead letters, if the range was begun with that table.",
)
@click.option(
    "--replan",
    is_flag=True,
    help="After RouteChanged: load the range that was begun as the next configuration says. Stop every loader first.",
)
@spark_options
@json_option
def unblock(skip: bool, replan: bool, as_json: bool, **options: Any) -> None:
    """Let a blocked loader go on.

    A loader blocks when batches cannot be read, or entries fail every time, after several attempts and its
    dlq_strategy says so; its error and `buffer ledger dump` name them with the reasons. Fix them, the table or the
    configuration, then run this and start the loader again: it tries the same range once more. Or give just those up
    with --skip: they go to the dead letters, or, if the range was begun without such a table, are left out (to have
    them in one that is new, use --replan instead). Their objects stay until the collector comes: copy them first if
    you may want them again.

    With --replan, a range that was begun and cannot be finished, because its configuration does not fit the table,
    say, or because the dead letters joined after it was begun, is set free for a changed one. It is refused if a table
    holds the range already: that one must be finished as it was begun. This alone needs Spark, to look at the tables.

    \b
    Examples:
      buffer-delta unblock --store ./queue
      buffer-delta unblock --store ./queue --skip
      buffer-delta unblock --store ./queue --replan
    """
    if skip and replan:
        raise click.UsageError("--skip gives batches up, --replan loads all of them in another way: choose one")
    config, store = open_queue(options, LOADER_TABLES)
    read_manifest(store, config.manifest_path)  # "nothing is blocked" must not be said of a queue that is not there
    journal = Plans(store, config.manifest_path, SystemClock())
    if replan:
        _replan(journal, config, options, as_json)
        return
    released = journal.unblock(skip=skip)
    if as_json:
        print_json({"unblocked": dataclasses.asdict(released) if released else None, "skip": skip})
    elif released is None:
        echo("nothing is blocked")
    else:
        entries = count(released.entries)
        bad = " and ".join(
            [plural(len(released.batches), "batches")] * (bool(released.batches) or not entries)
            + [plural(entries, "entries")] * bool(entries)
        )
        after = (
            f"{bad} go to the dead letters, if the range was begun with any, else nowhere"
            if skip
            else f"{bad} will be tried again"
        )
        echo(f"batches {released.first}..{released.last} are released: {after} when the loader starts")


def _replan(journal: Plans, config: QueueConfig, options: dict[str, Any], as_json: bool) -> None:
    from buffer_delta.delta.table import DeltaTarget

    ledger = journal.read()
    plan = None
    if ledger is not None and may_be_replanned(ledger):
        places = Places(ledger.tables, config.store, config.store_options)
        with running_spark("buffer-delta unblock", loads=places, **_spark_settings(options)) as spark:
            app_id = ledger.app_id or ""
            positions = {name: DeltaTarget(spark, at).look(app_id).position for name, at in _where(ledger).items()}
        plan = journal.replan(ledger.plan) if _is_free(ledger, positions) else None
    if as_json:
        print_json({"replanned": {"first": plan.first, "last": plan.last} if plan else None})
    elif plan is None:
        echo("nothing was begun that a changed configuration could not load")
    else:
        echo(f"batches {plan.first}..{plan.last} will be loaded as the next start is configured")


def _is_free(ledger: Ledger, positions: Mapping[str, int]) -> bool:
    """Whether no table holds the planned range. False if it is done; raises RouteChanged where it is half done."""
    plan = ledger.plan
    assert plan is not None, "the caller looked"
    if all(positions[name] >= plan.last for name in waits_for(ledger) or ledger.tables[:1]):
        return False
    for name, position in positions.items():
        if position >= plan.first:
            raise RouteChanged(
                f"{name!r} holds the range {plan.first}..{plan.last} already, which was begun for "
                f"{list(ledger.tables)}; finish it with the configuration that began it",
                first=plan.first,
                last=plan.last,
            )
    return True


def _spark_settings(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("master", "driver_memory", "packages", "spark_conf")}
