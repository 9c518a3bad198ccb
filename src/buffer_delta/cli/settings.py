"""The options of `buffer-delta load`, and how they become a `LoaderConfig`.

What an option would be clumsy for is reached by `--set key=value` or by the [loader] table of the `--config` file;
both take every setting that there is. Two of them are code, and are named as `module:function` there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from buffer.cli.options import settings
from buffer.config import read_toml
from buffer.errors import InvalidConfig
from buffer_delta.config import DLQ_STRATEGIES, WRITERS, LoaderConfig
from buffer_delta.formats import format_names

F = TypeVar("F", bound=Callable[..., Any])

CODE_SETTINGS = ("transform", "route_by")


def _pairs(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> dict[str, str] | None:
    parsed = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter("write KEY=VALUE, with no space around the '='")
        parsed[key] = text
    return parsed or None


def _listed(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> list[str] | None:
    return list(values) or None


def loader_options(command: F) -> F:
    """Where to, how, and when; the queue's own options come from `buffer.cli.options`."""
    option = click.option
    options = [
        option("--table", metavar="NAME|PATH", help="Delta table: db.events, ./events, s3a://bucket/events."),
        option("--format", "format_name", type=click.Choice(format_names()), help="[default: raw]"),
        option("--schema", metavar="DDL", help="Columns of json, csv or arrow records: 'id BIGINT, at TIMESTAMP'."),
        option("--dead-letters", metavar="TABLE", help="Where records and batches go that cannot be read."),
        option("--dlq-strategy", type=click.Choice(DLQ_STRATEGIES), help="For batches that cannot be read."),
        option("--serve", metavar="HOST:PORT", help="Status page, /healthz and /metrics, like 127.0.0.1:9464."),
        option(
            "--show-records",
            "serve_show_records",
            is_flag=True,
            default=None,
            help="Show there what errors quote of records, too.",
        ),
        option("--app-id", help="Delta's txnAppId. [default: buffer/ and the queue's id]"),
        option("--partition-by", multiple=True, callback=_listed, metavar="COLUMN", help="Of a new table."),
        option("--cluster-by", multiple=True, callback=_listed, metavar="COLUMN", help="Of a new table."),
        option("--table-property", "table_properties", multiple=True, callback=_pairs, metavar="K=V"),
        option("--writer", type=click.Choice(WRITERS), help="What writes the files: Arrow or Spark. [default: auto]"),
        option("--merge-schema", is_flag=True, default=None, help="Let new columns widen the table."),
        option(
            *("--column", "columns"),
            multiple=True,
            callback=_pairs,
            metavar="OLD=NEW",
            help="Rename _sequence, _index, _ingested_at or _entry_metadata; with nothing after = it is left out.",
        ),
        option("--transform", metavar="MODULE:FUNCTION", help="DataFrame -> DataFrame, on every range."),
        option("--route-by", metavar="COLUMN", help="The column that picks the table. Or module:function."),
        option("--route", "routes", multiple=True, callback=_pairs, metavar="VALUE=TABLE"),
        option("--max-batches-per-commit", type=int),
        option("--max-bytes-per-commit", type=int),
        option("--trigger-interval-s", type=float, help="How often to look at an empty queue. [default: 1]"),
        option("--commit-interval-s", type=float, help="At most one commit in it. [default: --trigger-interval-s]"),
        option("--min-commit-bytes", type=int, help="Wait for so much, as long as max_commit_wait_s allows."),
        option("--on-gap", type=click.Choice(["fail", "skip"]), help="skip accepts a loss of batches. Pass it once."),
        option("--adopt", is_flag=True, default=None, help="Take over a queue whose ledger is lost; needs --app-id."),
    ]
    for decorate in reversed(options):
        command = decorate(command)
    return command


def loader_settings(options: Mapping[str, Any]) -> LoaderConfig:
    """Raises InvalidConfig or a usage error that names the option."""
    values = dict(options)
    sets = values["sets"] = dict(values.get("sets") or {})
    table = _toml_table(values.get("config_path"))
    _choose_format(values, sets, table)
    for key in CODE_SETTINGS:
        given = next((source[key] for source in (values, sets, table) if source.get(key) is not None), None)
        if isinstance(given, str) and (key == "transform" or ":" in given):
            values[key] = load_function(key, given)
    if values.get("columns"):
        values["columns"] = {old: new or None for old, new in values["columns"].items()}
    if values.get("table") is None and "table" not in sets and "table" not in table:
        raise click.UsageError("which table? Pass --table, or set `table` under [loader] in the --config file")
    return settings(LoaderConfig, values)


def _toml_table(path: str | None) -> Mapping[str, Any]:
    table = read_toml(path).get(LoaderConfig.TOML_TABLE, {}) if path else {}
    return table if isinstance(table, Mapping) else {}


def _choose_format(values: dict[str, Any], sets: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """`--format json --schema …` is `format = {type = "json", schema = "…"}`; each of the two may stand alone."""
    name, schema = values.pop("format_name", None), values.pop("schema", None)
    if name is None and schema is None:
        return
    chosen = sets.get("format", table.get("format"))
    chosen = dict(chosen) if isinstance(chosen, Mapping) else {"type": chosen} if chosen else {}
    if name is not None and name != chosen.get("type"):
        chosen = {"type": name}  # the options of another format mean nothing to this one
    if schema is not None:
        chosen["schema"] = schema
    if "type" not in chosen:
        raise click.UsageError("--schema needs --format: which format has that schema?")
    values["format"] = chosen if len(chosen) > 1 else chosen["type"]


def load_function(key: str, name: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules beside the current folder count too."""
    module_name, colon, function_name = name.partition(":")
    if not module_name or not colon or not function_name:
        raise InvalidConfig(f"{key}={name!r} is not allowed: write module:function", key=key, value=name)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"{key}={name!r} cannot be imported: {error}", key=key, value=name) from error
    if not callable(function):
        raise InvalidConfig(f"{key}={name!r} is not a function", key=key, value=name)
    return function  # type: ignore[no-any-return]  # of a module of the user's
