"""`buffer-delta dead-letters list | show | redrive` and `buffer-delta redrive`: what could not become rows."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buffer.cli.options import looking_settings, queue_options
from buffer.cli.printing import counting, echo, is_terminal, print_facts, print_json, print_table
from buffer.cli.shell import OrderedGroup, json_option, session_options
from buffer.clock import SystemClock
from buffer.config import ProducerConfig, read_toml
from buffer.errors import InvalidInput
from buffer.inspect.human import human_bytes, plural
from buffer.store.open import open_store
from buffer_delta.cli.spark import running_spark, spark_options
from buffer_delta.spark.s3a import Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

F = TypeVar("F", bound=Callable[..., Any])

PAYLOAD_SHOWN_CHARS = 2000
LISTED_MAX = 100  # reasons: beyond, a filter helps
_table_option = click.option(
    "--dead-letters", metavar="TABLE", help="The table. [default: the --config file's [loader] dead_letters]"
)
_where_option = click.option(
    "--where", metavar="SQL", help="Only these: \"error LIKE 'not JSON%' AND _ingested_at > '2026-01-01'\"."
)

_stopped_option = click.option(
    "--loaders-stopped",
    is_flag=True,
    help="No loader of this table runs, and nothing else writes to it. Wanted on S3 with Spark's usual log store.",
)


def _looking(command: F) -> F:
    """Options of the commands that need no queue."""
    config = click.option("--config", "config_path", metavar="FILE", type=click.Path(dir_okay=False))
    for option in (json_option, spark_options, _where_option, config, _table_option):
        command = option(command)
    return session_options(command)


@click.group("dead-letters", cls=OrderedGroup, short_help="Look at records that could not become rows.")
def dead_letters() -> None:
    """Records and batches that could not become rows: why, which, and back into a queue."""


@dead_letters.command("list")
@_looking
def list_letters(as_json: bool, **options: Any) -> None:
    """Count dead letters by their reasons; names and numbers in a reason are shown as '…' and #.

    \b
    Examples:
      buffer-delta dead-letters list --dead-letters ./bad
      buffer-delta dead-letters list --config buffer.toml --where "redrive IS NULL" --json

    \b
    letters      how many there are
    sent back    … of them by a redrive
    again        … of them that had been sent back before, and failed again
    example      sequence and index of one, for `dead-letters show`
    """
    from pyspark.sql import functions as f

    with _letters(options) as frame:
        kind = f.regexp_replace(f.regexp_replace("error", r"(?s)'[^']*'", "'…'"), r"\d+", "#")
        found = (
            frame.groupBy(kind.alias("reason"))
            .agg(
                f.count("*").alias("letters"),
                f.count("redrive.at").alias("sent_back"),
                f.count_if(f.col("redrives") > 0).alias("again"),
                f.min("_ingested_at").alias("first"),
                f.max("_ingested_at").alias("last"),
                f.max_by(f.struct("_sequence", "_index"), f.struct("_sequence", "_index")).alias("example"),
            )
            .orderBy(f.desc("letters"), "reason")
            .limit(LISTED_MAX + 1)
            .collect()
        )
    rows = [row.asDict(recursive=True) for row in found[:LISTED_MAX]]
    if as_json:
        print_json({"reasons": rows, "more": len(found) > LISTED_MAX}, default=str)
        return
    print_table(
        ["letters", "sent back", "again", "first", "last", "example", "reason"],
        [
            (
                *(row["letters"], row["sent_back"], row["again"], _moment(row["first"]), _moment(row["last"])),
                f"{row['example']['_sequence']} {row['example']['_index']}",
                row["reason"],
            )
            for row in rows
        ],
        right=["letters", "sent back", "again"],
    )
    if len(found) > LISTED_MAX:
        echo("… and more reasons; --where narrows it down")


@dead_letters.command("show")
@click.argument("sequence", type=int)
@click.argument("index", type=int, required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--raw", is_flag=True, help="Write the bytes of one letter to stdout, and nothing else.")
@_looking
def show(sequence: int, index: int | None, limit: int, raw: bool, as_json: bool, **options: Any) -> None:
    """Show the letters of one batch, or one of them: reason, origin, metadata, payload.

    The index -1 is a batch that could not be read as a whole; its bytes are the object as it was.

    \b
    Examples:
      buffer-delta dead-letters show 41 --dead-letters ./bad
      buffer-delta dead-letters show 41 -- -1
      buffer-delta dead-letters show 41 7 --dead-letters ./bad --raw > entry.json
    """
    with _letters(options) as frame:
        chosen = frame.where(frame["_sequence"] == sequence)
        if index is not None:
            chosen = chosen.where(chosen["_index"] == index)
        found = chosen.orderBy("_index", "location").limit(2 if raw else limit).collect()
    if not found:
        raise InvalidInput(f"there is no dead letter {sequence} {'' if index is None else index}".rstrip())
    if raw:
        if len(found) > 1:
            raise InvalidInput(f"several letters are of batch {sequence}: give the index of one, or --where")
        sys.stdout.buffer.write(bytes(found[0]["bytes"] or b""))
        return
    if as_json:
        print_json([_document(row) for row in found], default=str)
        return
    for number, row in enumerate(found):
        if number:
            echo()
        print_facts(_facts(row))


def _redrive(as_json: bool, **options: Any) -> None:
    """Send entries in a dead-letter table back into the queue, each exactly once.

    Fix what was wrong first: the schema, the table's constraints, the transform. Then this produces the same bytes
    with the same metadata again, into the loader's own queue unless another one is named, and marks the letters in
    the table. An entry that still fails comes back as a new letter. Interrupted, run it again; run twice, each letter
    goes once. Letters that stand for a whole batch (index -1) stay: they are not entries.

    It may run beside the loader, but not on S3 with Spark's usual log store: there, stop the loader first and say so
    with --loaders-stopped, or set a multi-cluster log store.

    \b
    Examples:
      buffer-delta redrive --config buffer.toml
      buffer-delta redrive --store ./queue --dead-letters ./bad --where "error LIKE 'null in the column id%'"
    """
    table = _table(options)
    config = looking_settings(options, ("loader", "producer", "consumer", "gc"))
    store = open_store(config.store, **config.store_options) if isinstance(config.store, str) else config.store
    produce = ProducerConfig(
        store=store,
        manifest_path=config.manifest_path,
        data_path_prefix=config.data_path_prefix,
        gc_grace_s=config.gc_grace_s,
    )
    clock = SystemClock()
    places = Places((table,), config.store, config.store_options)
    with running_spark("buffer-delta redrive", loads=places, **_spark_settings(options)) as spark:
        from buffer_delta.letters.home import QueueHome
        from buffer_delta.letters.redrive import redrive
        from buffer_delta.letters.table import DeltaLetters

        stopped = bool(options["loaders_stopped"])
        letters = DeltaLetters(spark, table, options["where"], clock.now_ms, loaders_stopped=stopped)
        home = QueueHome(letters.client_id, store, produce, clock)
        total = letters.count() if is_terminal(sys.stderr) else None
        with counting("sending letters back", total) as advance:
            done = redrive(letters, home, clock, on_sent=advance)
    if as_json:
        print_json({"letters": done.letters, "batches": done.batches, "finished": done.finished})
    elif not done.letters:
        echo("there was nothing to send back")
    else:
        earlier = f", {done.finished:,} of them for an earlier redrive" if done.finished else ""
        echo(f"{plural(done.letters, 'letters')} went back in {plural(done.batches, 'batches')}{earlier}")


def _redrive_command() -> click.Command:
    command: Any = _redrive
    for option in (json_option, spark_options, _stopped_option, _where_option, _table_option, queue_options):
        command = option(command)
    made: click.Command = click.command("redrive", short_help="Send dead letters back into the queue.")(command)
    return made


redrive = _redrive_command()
dead_letters.add_command(redrive)


@contextmanager
def _letters(options: Mapping[str, Any]) -> Iterator[DataFrame]:
    """The letters that a command is about, while Spark runs."""
    table, loader = _table(options), _loader_table(options)
    places = Places((table,), str(loader.get("store", "")), loader.get("store_options", {}))
    with running_spark("buffer-delta dead-letters", loads=places, **_spark_settings(options)) as spark:
        from buffer_delta.letters.table import LetterTable

        yield LetterTable(spark, table).counted().where(options["where"] or "true")


def _table(options: Mapping[str, Any]) -> str:
    given = options["dead_letters"]
    if given is None:
        given = _loader_table(options).get("dead_letters")
    if not isinstance(given, str) or not given:
        raise click.UsageError(
            "which table? Pass --dead-letters, or set `dead_letters` under [loader] in the --config file"
        )
    return given


def _loader_table(options: Mapping[str, Any]) -> Mapping[str, Any]:
    path = options.get("config_path")
    found = read_toml(path).get("loader", {}) if path else {}
    return found if isinstance(found, Mapping) else {}


def _spark_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("master", "driver_memory", "packages", "spark_conf")}


def _moment(value: Any) -> str:
    return "" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def _document(row: Row) -> dict[str, Any]:
    facts: dict[str, Any] = row.asDict(recursive=True)
    for key in ("bytes", "_entry_metadata"):
        data = facts.pop(key)
        facts[f"{key}_base64"] = None if data is None else base64.b64encode(bytes(data)).decode()
    return facts


def _facts(row: Row) -> dict[str, object]:
    payload, metadata = row["bytes"], row["_entry_metadata"]
    redriven = row["redrive"]
    return {
        "letter": f"{row['_sequence']} {row['_index']}" + (" (a whole batch)" if row["_index"] < 0 else ""),
        "reason": row["error"],
        "ingested at": _moment(row["_ingested_at"]) or None,
        "batch": row["location"],
        "failed before": f"{plural(row['redrives'], 'times')}, and was sent back" if row["redrives"] else None,
        "sent back": None if redriven is None else _sent(redriven),
        "metadata": _shown(metadata) if metadata else None,
        "size": None if payload is None else human_bytes(len(payload)),
        "payload": "gone" if payload is None else _shown(payload),
    }


def _sent(redriven: Row) -> str:
    if redriven["at"] is None:
        return f"on its way to {redriven['place']}: the next redrive finishes it"
    batch = "" if redriven["sequence"] is None else f", as batch {redriven['sequence']}"
    return f"{_moment(redriven['at'])} to {redriven['place']}{batch}"


def _shown(data: bytes) -> str:
    """Bytes on one line: text as it is, the rest escaped, cut where it gets long."""
    text = bytes(data).decode("utf-8", errors="backslashreplace")
    if len(text) <= PAYLOAD_SHOWN_CHARS:
        return text
    return text[:PAYLOAD_SHOWN_CHARS] + f" … ({len(text):,} characters; --raw or --json show all)"
