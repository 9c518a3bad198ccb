"""`buffer-delta init`: asks for store, table and format, looks at the queue, writes a commented buffer.toml."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from buffer.cli.options import merge, queue_options, refuse_memory
from buffer.cli.printing import echo, is_terminal
from buffer.cli.shell import DONE, FAILED
from buffer.config import ConsumerConfig
from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError, InvalidInput, ObjectNotFound
from buffer.inspect.human import plural
from buffer.inspect.status import read_manifest
from buffer.store.endpoints import check_endpoints
from buffer.store.open import open_store
from buffer_delta.cli.check import findings, show
from buffer_delta.cli.guess import Sample, guess_format, sample
from buffer_delta.config import LoaderConfig
from buffer_delta.formats import format_names

PUBLIC_STORE_OPTIONS = ("endpoint", "region", "client_options", "virtual_hosted_style_request")
"""What may stand in a file that people share. Keys come from the environment."""
PRIVATE_CLIENT_OPTIONS = ("default_headers", "proxy_url")
"""These may hold passwords."""


@click.command(short_help="Write a commented buffer.toml, and try it out.")
@queue_options
@click.option("--table", metavar="NAME|PATH", help="Delta table: db.events, ./events, s3a://bucket/events.")
@click.option(
    "--format", "format_name", type=click.Choice(format_names()), help="[default: as the queue's entries look]"
)
@click.option("--schema", metavar="DDL", help="Columns of json records: 'id BIGINT, at TIMESTAMP'.")
@click.option("--dead-letters", metavar="TABLE", help="Where records go that cannot be read.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default="buffer.toml", show_default=True)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--no-check", is_flag=True, help="Do not try the settings out.")
def init(
    table: str | None,
    format_name: str | None,
    schema: str | None,
    dead_letters: str | None,
    output: Path,
    force: bool,
    no_check: bool,
    **options: Any,
) -> int:
    """Write a commented buffer.toml for a producer and a loader, and try it out.

    What is not given as an option is asked for, on a terminal. If the queue holds something already, its first batches
    say which format fits. Keys and passwords never get into the file: they belong into the environment.

    \b
    Examples:
      buffer-delta init
      buffer-delta init --store s3://bucket/events --table s3a://lake/events --format json --schema 'id BIGINT'
    """
    if options.get("config_path"):
        raise click.UsageError("init writes such a file and reads none: leave --config out; --set takes any setting")
    if output.exists() and not force:
        raise InvalidInput(f"{str(output)!r} is there already; pass --force to write over it, or --output")
    sets = dict(options.get("sets") or {})
    store_options = merge(_table(sets, "store_options"), options.get("store_options") or {})
    public_options = _public(store_options, _table(sets, "table_options"))
    given = {key: _given(sets, key, options.get(key)) for key in ("store", "manifest_path", "data_path_prefix")}
    store = given["store"] or _ask("Where is the queue? (s3://bucket/path, a folder)", "--store")
    refuse_memory(store)
    table = _given(sets, "table", table) or _ask(
        "Which Delta table? (db.events, s3a://bucket/events, a folder)", "--table"
    )
    queue = {key: value for key, value in given.items() if key != "store" and value}
    found = _look(store, store_options, queue)
    form = _format(found, format_name, schema, sets)
    dead_letters = _given(sets, "dead_letters", dead_letters)
    if dead_letters is None and is_terminal(sys.stdin):
        dead_letters = _ask("A table for records that cannot be read? (empty: none)", "--dead-letters", "") or None
    settings = {**queue, "store": store, "store_options": public_options, "table": table, "format": form}
    if dead_letters:
        settings["dead_letters"] = dead_letters
    config = LoaderConfig.from_dict({**settings, **sets})  # refuses what would not work
    output.write_text(document(settings, sets), encoding="utf-8")
    echo(f"wrote {output}")
    wrong = False
    if not no_check:
        config = config.replace(store_options=store_options)
        for each in findings(config, None):
            wrong = wrong or each.verdict == "wrong"
            show(each)
    echo(f"next: buffer-delta check --config {output}     (with Spark: tables, executors)")
    echo(f"      buffer-delta load --config {output}")
    return FAILED if wrong else DONE


def _ask(question: str, option: str, default: str | None = None) -> str:
    if not is_terminal(sys.stdin):
        raise click.UsageError(f"pass {option}: there is no terminal to ask on")
    answer: str = click.prompt(question, default=default, err=True, show_default=bool(default))
    return answer


def _given(sets: dict[str, Any], key: str, option: Any) -> Any:
    """A setting that has a line of its own in the file. Taken out of `sets`: a key may stand there once."""
    value = sets.pop(key, None)
    return value if option is None else option


def _table(sets: dict[str, Any], key: str) -> dict[str, Any]:
    value = sets.pop(key, {})
    if not isinstance(value, dict):
        raise click.UsageError(f'--set {key}: write a table, like {{ name = "value" }}')
    return value


def _format(found: Sample, name: str | None, schema: str | None, sets: dict[str, Any]) -> Any:
    """As it was given, or asked for, or as the first entries look."""
    guessed = guess_format(found.entries)
    if found.entries:
        echo(f"the queue's first {plural(len(found.entries), 'entries')} look like: {guessed}")
    chosen = _given(sets, "format", name)
    if chosen is None:
        asked = is_terminal(sys.stdin)
        chosen = _ask("Which format?", "--format", guessed or "json") if asked else guessed or "raw"
    if schema is None:
        return chosen
    return {**(chosen if isinstance(chosen, dict) else {"type": chosen}), "schema": schema}


def _public(store_options: dict[str, Any], table_options: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in store_options.items() if key in PUBLIC_STORE_OPTIONS}
    check_endpoints("", kept, {})  # a key in an address is refused when the store is opened; the file comes before
    left = sorted({*store_options} - {*kept}) + sorted(table_options)
    if isinstance(client := kept.get("client_options"), dict):
        kept["client_options"] = {key: value for key, value in client.items() if key not in PRIVATE_CLIENT_OPTIONS}
        left += sorted(f"client_options.{key}" for key in {*client} - {*kept["client_options"]})
    if left:
        echo(f"not written, for it may be a key: {', '.join(left)}; set it in the environment instead", err=True)
    return kept


def _look(store: str, store_options: dict[str, Any], queue: dict[str, Any]) -> Sample:
    """The first entries, where there are some: a queue that is not there yet is fine."""
    config = ConsumerConfig(store=store, store_options=store_options, **queue)
    try:
        opened = open_store(store, **store_options)
        manifest = read_manifest(opened, config.manifest_path)
    except ObjectNotFound:
        return Sample(0, ())
    except BufferQueueError as error:
        return Sample(0, (), str(error))
    return sample(FetchHandle(opened, config.max_batch_bytes, prefixes=config.prefixes()), manifest)


# The file


def document(settings: dict[str, Any], sets: dict[str, Any]) -> str:
    """The text of buffer.toml. Every value is written as TOML, whatever characters are in it."""
    keys = ("store", "manifest_path", "data_path_prefix")
    queue: dict[str, Any] = {key: settings[key] for key in keys if key in settings}
    shared = _lines(queue) + (_lines({"store_options": settings["store_options"]}) if settings["store_options"] else "")
    dead = settings.get("dead_letters")
    return f"""\
# Settings of buffer and buffer-delta; docs/configuration.md lists all of them.
# Keys and passwords do not belong here: set AWS_ACCESS_KEY_ID and the like in the environment.

[producer]
{shared}compression = "zstd"
# flush_interval_ms = 100        # a batch waits at most this long for more
# max_depth = 0                  # refuse to produce while more batches than this wait; 0: never

[loader]
{shared}{_lines({"table": settings["table"], "format": settings["format"]})}\
{
        _lines({"dead_letters": dead})
        if dead
        else '# dead_letters = "…"             # a table for records that cannot be read' + chr(10)
    }\
# partition_by = ["day"]         # of a new table; or cluster_by
# max_batches_per_commit = 1000  # fewer, larger commits are cheaper; smaller ones are fresher
# trigger_interval_s = 1.0
# serve = "127.0.0.1:9464"       # status page, /healthz and /metrics; needs buffer-delta[serve]
# serve_max_lag_s = 900          # /healthz says 503 when the oldest entry has waited longer
{_lines(sets)}"""


def _lines(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's text, numbers and truth are TOML's; DEL is the one character that TOML alone wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)
