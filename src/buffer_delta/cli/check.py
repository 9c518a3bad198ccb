"""`buffer-delta check`: whether a loader would work with these settings, found out by trying, a line for each thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from buffer.cli.interrupts import InterruptibleClock
from buffer.cli.options import queue_options
from buffer.cli.printing import one_line, print_json, printable, verdict
from buffer.cli.shell import DONE, FAILED, describe, json_option
from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError
from buffer.inspect.human import plural
from buffer.inspect.probes import Finding, check_queue, check_store, finding
from buffer.inspect.status import QueueStatus, read_manifest
from buffer.ledger.binding import Binding, is_bound
from buffer.ledger.plan import Ledger
from buffer.model import BatchDescriptor
from buffer.names import ledger_path
from buffer.store.base import Store
from buffer.store.open import open_store
from buffer_delta.cli.guess import Sample, sample
from buffer_delta.cli.settings import loader_options, loader_settings
from buffer_delta.cli.spark import explaining_spark, running_spark, spark_options
from buffer_delta.config import LoaderConfig
from buffer_delta.errors import QueueBound, SparkUnusable
from buffer_delta.load.checks import free_places, lasting_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKS = {"ok": ("ok   ", "green"), "note": ("note ", "yellow"), "wrong": ("WRONG", "red")}


@click.command(short_help="Try out all that a loader needs, a line for each thing.")
@queue_options
@loader_options
@spark_options
@click.option("--no-spark", is_flag=True, help="Only what needs no Spark: store, queue, clock, format.")
@json_option
def check(no_spark: bool, as_json: bool, **options: Any) -> int:
    """Try out everything a loader needs, with the settings of `load`, and say what is wrong.

    \b
    store               it answers, and honours conditional writes
    queue, clock        what waits; whether a producer's clock is ahead of this one
    format              the first batches, read with the format and schema given
    java, delta         Spark starts, with Delta's JARs
    main table          it is the one that the queue is loaded into, if it was loaded before
    table …             it is there, or can be made, and lasts; a file can be written beside its data
    executors           they can read the queue: keys and network reach them, too

    Nothing is claimed, loaded or changed; small objects that it writes to try things out are deleted again. It ends
    with 1 if anything is wrong.

    \b
    Examples:
      buffer-delta check --config buffer.toml
      buffer-delta check --store s3://bucket/q --table s3a://lake/events --format json --no-spark
    """
    config = loader_settings(options)
    spark_settings = {key: options[key] for key in ("master", "driver_memory", "packages", "spark_conf")}
    found = []
    for each in findings(config, None if no_spark else spark_settings):
        found.append(each)
        if not as_json:
            show(each)
    if as_json:
        print_json([{"what": f.what, "verdict": f.verdict, "said": f.said} for f in found])
    return FAILED if any(f.verdict == "wrong" for f in found) else DONE


def show(found: Finding) -> None:
    mark, colour = MARKS[found.verdict]
    name = printable(found.what).ljust(18)
    verdict(mark, colour, f"{name}  {one_line(found.said)}")


def findings(config: LoaderConfig, spark_settings: dict[str, Any] | None) -> Iterator[Finding]:
    """One after the other, as they are found; what rests on something that is wrong is left out."""
    clock = InterruptibleClock()
    try:
        store = open_store(config.store, **config.store_options)
    except BufferQueueError as error:
        yield Finding("store", "wrong", str(error))
        return
    reached = check_store(store, config.manifest_path, config.data_path_prefix, clock)
    yield from reached
    if reached[0].verdict == "wrong":
        return
    queue, said = check_queue(store, config.manifest_path, clock)
    yield from said
    if queue is not None and (bound := _bound(queue, config, with_spark=spark_settings is not None)):
        yield bound
    first = _sample(store, config, queue)
    yield check_format(config, first)
    if spark_settings is None:
        return
    yield from check_spark(config, store, queue, spark_settings)


def _bound(queue: QueueStatus, config: LoaderConfig, *, with_spark: bool) -> Finding | None:
    """As far as names tell. Whether another spelling leads to the same table, Spark finds out: `check_binding`."""
    ledger = queue.ledger
    if ledger is None or ledger.app_id is None:
        return None
    if config.app_id not in (None, ledger.app_id) and not config.adopt:
        said = f"the queue is loaded as {ledger.app_id!r}, not as {config.app_id!r}; see --adopt"
        return Finding("ledger", "wrong", said)
    if config.table == ledger.tables[0]:
        return Finding("ledger", "ok", f"loaded as {ledger.app_id} into {config.table}")
    if with_spark:
        return None
    said = (
        f"the queue was loaded into {ledger.tables[0]} so far, and the settings name {config.table}: whether that is "
        "the same table, only a check with Spark can tell"
    )
    return Finding("ledger", "note", said)


def _sample(store: Store, config: LoaderConfig, queue: QueueStatus | None) -> Sample:
    if queue is None or not queue.length:
        return Sample(0, ())
    handle = FetchHandle(store, config.max_batch_bytes, prefixes=config.prefixes())
    return sample(handle, read_manifest(store, config.manifest_path))


def check_format(config: LoaderConfig, first: Sample) -> Finding:
    """Whether the first entries become rows."""
    try:
        with explaining_spark():
            from buffer_delta.formats import resolve_format

            form = resolve_format(config.format)
    except BufferQueueError as error:
        return Finding("format", "wrong", str(error))
    if first.problem is not None:
        return Finding("format", "wrong", f"a batch cannot be read: {first.problem}")
    if not first.entries:
        return Finding("format", "note", f"{form.name}: nothing in the queue to try it on")
    entries = pa.array(first.entries, pa.binary())
    if form.evolving:
        form = form.with_schema(form.discover(entries))
    parsed = form.parse(entries)
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(form.schema.names, form.schema.types, strict=True))
    if parsed.bad:
        index, why = parsed.bad[0]
        said = f"{form.name}: {len(parsed.bad)} of {len(entries)} entries do not parse, the first is {index}: {why}"
        goes = (
            "they would go to the dead letters" if config.dead_letters else "they would be rescued or stop the loader"
        )
        return Finding("format", "wrong" if len(parsed.bad) == len(entries) else "note", f"{said}; {goes}")
    return Finding(
        "format",
        "ok",
        f"{form.name}: {plural(len(entries), 'entries')} of {plural(first.batches, 'batches')} fit: {columns}",
    )


# With Spark


def check_spark(
    config: LoaderConfig, store: Store, queue: QueueStatus | None, settings: dict[str, Any]
) -> Iterator[Finding]:
    try:
        with explaining_spark():
            from buffer_delta.spark.session import check_java

            check_java()
    except BufferQueueError as error:
        yield Finding("java", "wrong", str(error))
        return
    yield Finding("java", "ok", "there, and new enough")
    try:
        with running_spark("buffer-delta check", loads=config, **settings) as spark:
            yield Finding("delta", "ok", f"Spark {spark.version} runs with Delta's JARs")
            if queue is not None and (ledger := queue.ledger) is not None and not ledger.is_unbound:
                yield _attempt("main table", lambda: check_binding(spark, config, ledger))
            for name in config.tables():
                yield _attempt(f"table {name}", lambda name=name: check_table(spark, name, queue))  # type: ignore[misc]
            yield check_executors(spark, config, store, queue)
    except SparkUnusable as error:
        yield Finding("delta", "wrong", str(error))


def _attempt(what: str, look: Callable[[], str]) -> Finding:
    """Like `finding`, for what Java may say, too."""
    try:
        with explaining_spark():
            return finding(what, look)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is wrong
        return Finding(what, "wrong", describe(error))


def check_binding(spark: SparkSession, config: LoaderConfig, ledger: Ledger) -> str:
    """The main table is the one that the queue feeds, however it is spelled and wherever it was moved.

    Raises QueueBound, as a loader would.
    """
    from buffer_delta.delta.table import DeltaTarget

    if config.adopt:
        return f"{config.table} adopts the queue, which was loaded into {ledger.tables[0]}"
    target = DeltaTarget(spark, config.table)
    position = target.look(ledger.app_id or "").position
    binding = Binding(config.app_id, (config.table,), (target.place,), target.identity(), position)
    is_bound(ledger, binding, location=ledger_path(config.manifest_path))
    return f"{config.table} is the table that the queue is loaded into, {(ledger.places or ledger.tables)[0]}"


def check_table(spark: SparkSession, name: str, queue: QueueStatus | None) -> str:
    """Looks at the table, and writes and deletes a file beside its data."""
    from buffer_delta.delta.places import path_of
    from buffer_delta.delta.table import DeltaTarget

    target = DeltaTarget(spark, name)
    lasting_tables([name] if target.ends_with_the_session() else [])
    free_places({name: target.occupant()})
    seen = target.look((queue.ledger.app_id if queue and queue.ledger else None) or "")
    if seen.version is None and path_of(name) is None:
        database = name.replace("`", "").rpartition(".")[0]
        if database and not spark.catalog.databaseExists(database):
            raise QueueBound(f"there is no database {database!r} for a new table")
        return "there is none yet: the loader creates it"
    place = target.location()
    _write_and_delete(spark, place)
    if seen.version is None:
        return f"there is none yet, and {place} can be written: the loader creates it"
    position = f"loaded through {seen.position}" if seen.position >= 0 else "nothing of this queue in it"
    return f"version {seen.version}, {position}, and {place} can be written"


def _write_and_delete(spark: SparkSession, place: str) -> None:
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(place)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    was_there = files.exists(folder)
    path = jvm.org.apache.hadoop.fs.Path(folder, f".buffer-check-{InterruptibleClock().new_ulid()}")
    try:
        files.create(path, True).close()
    finally:
        files.delete(path, False)
        if not was_there:
            files.delete(folder, False)  # an empty one; where something came meanwhile it refuses


def check_executors(spark: SparkSession, config: LoaderConfig, store: Store, queue: QueueStatus | None) -> Finding:
    """The first batch, fetched where the loader will fetch it."""
    what = "executors"
    if queue is None or not queue.length:
        return Finding(what, "note", "nothing in the queue that they could read")
    first: BatchDescriptor | None = read_manifest(store, config.manifest_path).read(queue.first_sequence)
    if first is None:
        return Finding(what, "note", "the queue has just been emptied")
    handle = FetchHandle(store, config.max_batch_bytes, prefixes=config.prefixes())

    def look() -> str:
        from buffer_delta.spark import tasks

        return f"one of them has read batch {first.sequence}: {tasks.count(spark, handle, first)} entries"

    return _attempt(what, look)
