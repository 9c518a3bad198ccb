"""Options that say which queue, and how they become settings.

A setting comes from, in this order: its option (or environment variable: `BUFFER_STORE`), `--set`, the table of
the `--config` file, the default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from buffer.cli.shell import session_options
from buffer.config import Config, ConsumerConfig, read_toml, reject
from buffer.errors import InvalidConfig
from buffer.urls import public_url

C = TypeVar("C", bound=Config)
F = TypeVar("F", bound=Callable[..., Any])

LOOKING_TABLES = ("consumer", "loader", "producer", "gc")
"""Commands that only look find the queue in the first of these tables that a configuration file has."""

LOADER_TABLES = ("loader", *(name for name in LOOKING_TABLES if name != "loader"))
"""The same for commands that look at what a loader does: a consumer in that file may have another queue."""


def queue_options(command: F) -> F:
    """`--store` and related options. They arrive as the keyword arguments that `settings` takes as `options`."""
    options = [
        click.option(
            "--store",
            envvar="BUFFER_STORE",
            show_envvar=True,
            metavar="URL",
            help="Where the queue lies: s3://bucket/path, gs://…, az://…, file:///folder or a path.",
        ),
        click.option(
            "--store-option",
            "store_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=parse_store_options,
            help="Passed on to the store, like endpoint=http://localhost:8333 or client_options.allow_http=true. "
            "Repeatable. Keep keys and passwords in the environment (AWS_ACCESS_KEY_ID, …) instead.",
        ),
        click.option("--manifest", "manifest_path", metavar="PATH", help="[default: ingest/manifest]"),
        click.option(
            "--prefix",
            "data_path_prefix",
            metavar="PATH",
            help="Folder of the batches; no two queues may have the same. [default: the manifest's folder]",
        ),
        click.option(
            "--config",
            "config_path",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="TOML file with the tables [producer], [consumer], [gc], [loader].",
        ),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY=VALUE",
            callback=parse_sets,
            help="Any other setting, with a TOML value: --set max_buffered_bytes=1_000_000. Repeatable.",
        ),
    ]
    command = session_options(command)
    for option in reversed(options):
        command = option(command)
    return command


def settings(kind: type[C], options: Mapping[str, Any]) -> C:
    """The settings of a role. `options` are a command's parameters; those that are None were not given."""
    values: dict[str, Any] = {}
    if options.get("config_path"):
        document = read_toml(options["config_path"])
        table = document.get(kind.TOML_TABLE, {})
        if not isinstance(table, dict):
            raise InvalidConfig(f"{kind.TOML_TABLE} must be a table", key=kind.TOML_TABLE)
        values = dict(table)
    return _build(kind, values, options, kind.TOML_TABLE)


def looking_settings(options: Mapping[str, Any], tables: Sequence[str] = LOOKING_TABLES) -> ConsumerConfig:
    """Which queue to look at, for commands without settings of their own: any table of the file may say."""
    values: dict[str, Any] = {}
    if options.get("config_path"):
        document = read_toml(options["config_path"])
        table: dict[str, Any] = next((document[name] for name in tables if isinstance(document.get(name), dict)), {})
        known = ConsumerConfig.setting_names()
        values = {key: value for key, value in table.items() if key in known}
    return _build(ConsumerConfig, values, options, tables[0])


def _build(kind: type[C], values: dict[str, Any], options: Mapping[str, Any], table: str) -> C:
    values = {**values, **options.get("sets", {})}
    for key, value in options.items():
        if key == "store_options" and value:
            values[key] = merge(values.get(key, {}), value)
        elif key in kind.setting_names() and key != "store_options" and value is not None:
            values[key] = value
    if "store" not in values:
        raise click.UsageError(
            "which queue? Pass --store URL, set BUFFER_STORE, or name a --config file whose "
            f"[{table}] table has a store"
        )
    refuse_memory(values["store"])
    return kind.from_dict(values)


def refuse_memory(store: object) -> None:
    """A command is a process of its own: what it calls durable must be there for the next one."""
    if isinstance(store, str) and store.lower().startswith("memory:"):
        raise reject(
            "store",
            public_url(store),
            "a folder (./queue) or a bucket (s3://bucket/path) on the command line: a memory store lives in one "
            "process and is gone when the command ends",
        )


def parse_store_options(_ctx: click.Context, _param: click.Parameter, pairs: Sequence[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, value = _split(pair)
        *tables, name = key.split(".")
        nested: dict[str, Any] = {name: _store_value(value, is_number=tables[:1] == ["retry_config"])}
        for table in reversed(tables):
            nested = {table: nested}
        parsed = merge(parsed, nested)
    return parsed


def _store_value(text: str, *, is_number: bool) -> Any:
    """Options are text (a key of digits stays as it is) or switches; obstore wants numbers in `retry_config` alone."""
    if text in ("true", "false"):
        return text == "true"
    if is_number:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def parse_sets(_ctx: click.Context, _param: click.Parameter, pairs: Sequence[str]) -> dict[str, Any]:
    parsed = {}
    for pair in pairs:
        key, text = _split(pair)
        try:
            parsed[key.replace("-", "_")] = tomllib.loads(f"value = {text}")["value"]
        except RecursionError:
            raise click.BadParameter(f"the value of {key} is nested too deeply") from None
        except ValueError:  # no TOML, or a number of thousands of digits
            parsed[key.replace("-", "_")] = text  # a bare word is the text itself: quotes would not survive the shell
    return parsed


def _split(pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not key or not equals:
        raise click.BadParameter("write KEY=VALUE, with no space around the '='")  # not repeated: it may be a key
    return key, value


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged
