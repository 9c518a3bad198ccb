"""The options of a read and of a write: text from Spark, checked once, as values.

Spark hands over every option as text, without its case. A wrong name or value is an `InvalidConfig` that says what
is allowed. Store options go to obstore unchanged, under `store.`; nothing here prints them.

**Secrets.** Spark hides the values of options whose names match `spark.redaction.regex` (secret, password, token,
access.key) wherever it shows a plan. Not all names of obstore's do, `account_key` say: such a name is refused with
the one to use instead, `store.secret.account_key`, which means the same and is hidden.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from buffer.config import DEFAULT_MANIFEST_PATH, GIB, MIB, ConsumerConfig, ProducerConfig, reject
from buffer.errors import InvalidConfig
from buffer.produce.adopt import CallId
from buffer_delta.config import PROVENANCE_COLUMNS
from buffer_delta.formats.avro.names import FRAMINGS, SCHEMA_ID_MAX
from buffer_delta.formats.base import Format
from buffer_delta.formats.registry import check_name, format_class

MODES = ("permissive", "dropmalformed", "failfast")
VIEWS = ("rows", "batches", "dead_letters")
EARLIEST = "earliest"
DIGITS_MAX = 20  # of a whole number: the longest is a client_seq of 64 bits

STORE = "store."
SECRET = "store.secret."
COLUMNS = "columns."

_WHERE = ("path", "manifest_path", "data_path_prefix")
_READ_OPTIONS = (
    *_WHERE,
    *(
        "format",
        "mode",
        "view",
        "count_entries",
        "columns",
        "columns.<name>",
        "start",
        "ack",
        "from_sequence",
        "to_sequence",
    ),
    *("max_batches_per_trigger", "max_bytes_per_trigger", "partition_bytes"),
    *("max_batch_bytes", "fetch_attempts", "gc_enabled", "former_prefixes"),
)
_WRITE_OPTIONS = (
    *_WHERE,
    *("format", "compression", "flush_size_bytes", "max_batch_bytes", "gc_grace_s", "append_timeout_s"),
    *("client_id", "client_seq", "framing", "schema_id"),
)
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Of a stream's own writer, which hands them on."""

_HIDDEN_BY_SPARK = re.compile(r"(?i)secret|password|token|access[.]?key")
"""The default of `spark.redaction.regex`."""
_LOOKS_SECRET = re.compile(r"(?i)secret|password|token|credential|signature|authorization|sas|key(?!_id)")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a read was asked for."""

    queue: ConsumerConfig
    format: str = "raw"
    format_options: Mapping[str, Any] = field(default_factory=dict)
    """Of that format; its schema among them, if there is one."""
    columns: Mapping[str, str | None] = field(default_factory=dict)
    """New names for the provenance columns; None leaves one out."""
    mode: str = "permissive"
    """What becomes of an entry that the format cannot understand."""
    view: str = "rows"
    count_entries: bool = False
    """The view `batches`: ask each object for its last bytes, which tell how many entries it has."""
    from_sequence: int | None = None
    """Batch reads: the first batch; the oldest there is unless given."""
    to_sequence: int | None = None
    """Batch reads: the last batch; the newest there is unless given."""
    start: int | str | None = None
    """Streams without a checkpoint: `earliest`, or the first sequence. None: `earliest`, if nobody read before."""
    ack: bool = True
    """Streams: take what was processed out of the queue."""
    max_batches_per_trigger: int = 10_000
    max_bytes_per_trigger: int = GIB
    partition_bytes: int = 16 * MIB
    """About how many stored bytes a task reads."""

    @property
    def lacks_schema(self) -> bool:
        """Whether the format cannot be made without columns, and no option gives them."""
        return format_class(self.format).needs_schema and self.format_options.get("schema") is None

    def with_format(self, schema: Any = None) -> Format:
        """The format, with these columns if none were given as an option. Raises InvalidConfig."""
        options = dict(self.format_options)
        if schema is not None and options.get("schema") is None:
            options["schema"] = schema
        form = format_class(self.format)(**options)
        if not form.evolving and form.variants:
            raise InvalidConfig(
                f"the schema has VARIANT columns ({', '.join(form.variants)}), which only the loader writes; read them "
                "as STRING, which is their JSON text, and use parse_json",
                key="schema",
                value=list(form.variants),
            )
        return form


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a read or a stream. Raises InvalidConfig."""
    left = {key.lower(): value for key, value in given.items()}
    queue = _queue(left)
    form = left.pop("format", "raw")
    check_name(form)
    settings: dict[str, Any] = {"queue": queue, "format": form, "columns": _columns(left)}
    for key, choices in (("mode", MODES), ("view", VIEWS)):
        if key in left:
            settings[key] = _choice(key, left.pop(key).lower(), choices)
    for key in ("from_sequence", "to_sequence"):
        if key in left:
            settings[key] = _whole(key, left.pop(key), 0)
    for key in ("max_batches_per_trigger", "max_bytes_per_trigger", "partition_bytes"):
        if key in left:
            settings[key] = _whole(key, left.pop(key), 1)
    if "start" in left:
        settings["start"] = _start(left.pop("start"))
    for key in ("ack", "count_entries"):
        if key in left:
            settings[key] = _flag(key, left.pop(key))
    settings["format_options"] = _format_options(form, left)
    if left:
        allowed = [*_READ_OPTIONS, *format_class(form).Options.setting_names()]
        raise _unknown(next(iter(left)), f"a read in the format {form!r}", allowed)
    return ReadOptions(**settings)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What a write was asked for."""

    queue: ProducerConfig
    format: str = "raw"
    framing: str = "none"
    """What stands before an Avro record; see the format `avro`."""
    schema_id: int | None = None
    """With `confluent`: the number of the schema in the registry, which is not asked."""
    call: CallId | None = None
    """Of a batch write that must go in once, however often it is run: the client, and the number of the run."""
    is_marked: bool = True
    """Where none is given: whether the write gets a mark of its own, see `produce.append_once`."""


def write_options(given: Mapping[str, str], formats: tuple[str, ...]) -> WriteOptions:
    """The options of a write in one of these formats. Raises InvalidConfig."""
    left = {key.lower(): value for key, value in given.items() if key.lower() not in _SPARKS_OWN}
    settings = queue_settings(left)
    form = _choice("format", left.pop("format", "raw").lower(), formats)
    for key in ("flush_size_bytes", "max_batch_bytes", "gc_grace_s", "append_timeout_s"):
        if key in left:
            settings[key] = _whole(key, left.pop(key), 1)
    if "compression" in left:
        settings["compression"] = left.pop("compression").lower()
    is_marked = left.get("client_id", "").lower() != "none" or "client_seq" in left
    if not is_marked:
        del left["client_id"]
    call = _call(left)
    framing, schema_id = _framing(left, form)
    if left:
        raise _unknown(next(iter(left)), "a write", _WRITE_OPTIONS)
    return WriteOptions(
        queue=ProducerConfig(**settings),
        format=form,
        framing=framing,
        schema_id=schema_id,
        call=call,
        is_marked=is_marked,
    )


def store_options(left: dict[str, str]) -> dict[str, Any]:
    """Take the options of the store out of all options. Raises InvalidConfig; values are in no message."""
    options: dict[str, Any] = {}
    for key in [key for key in left if key.startswith(STORE)]:
        value: Any = left.pop(key)
        name = key.removeprefix(SECRET) if key.startswith(SECRET) else key.removeprefix(STORE)
        if _LOOKS_SECRET.search(name) and not _HIDDEN_BY_SPARK.search(key):
            raise InvalidConfig(
                f"the option {key!r} looks like a secret, and Spark would print it with a query's plan; "
                f"write it as {SECRET + name!r}, which Spark hides",
                key=key,
            )
        target, _, inner = name.partition(".")
        if not inner:
            options[target] = value
        elif target in ("client_options", "retry_config"):
            if target == "retry_config" and _number(value) is not None:  # obstore wants numbers there alone
                value = _number(value)
            else:
                value = {"true": True, "false": False}.get(value.lower(), value)
            options.setdefault(target, {})[inner] = value
        else:
            raise InvalidConfig(f"the option {key!r} is not allowed: write {STORE + target!r}", key=key)
    return options


def queue_settings(left: dict[str, str]) -> dict[str, Any]:
    """Take what says where the queue lies: shared by reads and writes."""
    path = left.pop("path", "")
    if not path:
        raise InvalidConfig(
            "the data source needs a path: load('s3://bucket/queue'), the URL or the folder of the store that the "
            "queue is in",
            key="path",
        )
    if path.startswith("memory:"):
        raise InvalidConfig(
            f"path={path!r} is not allowed: memory belongs to one process, and Spark's tasks run in others; use a "
            "folder or a bucket",
            key="path",
            value=path,
        )
    settings: dict[str, Any] = {
        "store": path,
        "store_options": store_options(left),
        "manifest_path": left.pop("manifest_path", DEFAULT_MANIFEST_PATH),
    }
    if "data_path_prefix" in left:
        settings["data_path_prefix"] = left.pop("data_path_prefix")
    return settings


def _queue(left: dict[str, str]) -> ConsumerConfig:
    settings = queue_settings(left)
    for key, low in (("max_batch_bytes", 1), ("fetch_attempts", 1)):
        if key in left:
            settings[key] = _whole(key, left.pop(key), low)
    if "former_prefixes" in left:
        settings["former_prefixes"] = [name.strip() for name in left.pop("former_prefixes").split(",")]
    if "gc_enabled" in left:
        settings["gc_enabled"] = _flag("gc_enabled", left.pop("gc_enabled"))
    return ConsumerConfig(**settings)


def _call(left: dict[str, str]) -> CallId | None:
    client_id, client_seq = left.pop("client_id", None), left.pop("client_seq", None)
    if client_id is None and client_seq is None:
        return None
    if not client_id or client_seq is None:
        raise InvalidConfig(
            "client_id and client_seq belong together: a name for the job, and a number that grows from run to run, "
            "like 20260131",
            key="client_seq" if client_id else "client_id",
        )
    return CallId(client_id, _whole("client_seq", client_seq, 0))


def _framing(left: dict[str, str], form: str) -> tuple[str, int | None]:
    """How Avro records are framed, and the number that `confluent` needs."""
    if form != "avro":
        return "none", None  # then the two are unknown options
    framing = _choice("framing", left.pop("framing", "none").lower(), FRAMINGS)
    if framing != "confluent":
        return framing, None
    if "schema_id" not in left:
        raise InvalidConfig(
            "framing='confluent' needs schema_id, the number that the registry gave to the schema; "
            "buffer_delta.formats.avro_schema(frame.schema) tells which schema that is",
            key="schema_id",
        )
    schema_id = _whole("schema_id", left.pop("schema_id"), 0)
    if schema_id > SCHEMA_ID_MAX:
        raise reject("schema_id", schema_id, f"at most {SCHEMA_ID_MAX}")
    return framing, schema_id


def _columns(left: dict[str, str]) -> dict[str, str | None]:
    columns: dict[str, str | None] = {}
    if "columns" in left:
        value = left.pop("columns")
        if value.lower() != "none":
            raise reject("columns", value, "'none', which leaves all provenance columns out; or use columns._sequence")
        columns = dict.fromkeys(PROVENANCE_COLUMNS)
    for key in [key for key in left if key.startswith(COLUMNS)]:
        name = key.removeprefix(COLUMNS)
        if name not in PROVENANCE_COLUMNS:
            raise InvalidConfig(
                f"there is no column {name!r} to rename; the provenance columns are {', '.join(PROVENANCE_COLUMNS)}",
                key=key,
                value=left[key],
            )
        columns[name] = left.pop(key) or None
    return columns


def _format_options(form: str, left: dict[str, str]) -> dict[str, Any]:
    """Take the format's own options, as the types that they have there."""
    kinds = {f.name: f for f in dataclasses.fields(format_class(form).Options)}
    taken: dict[str, Any] = {}
    for key in [key for key in left if key in kinds]:
        value, default = left.pop(key), kinds[key].default
        if isinstance(default, bool):
            taken[key] = _flag(key, value)
        elif isinstance(default, int):
            taken[key] = _whole(key, value, 0)
        else:
            taken[key] = None if value.lower() == "none" else value
    return taken


def _start(value: str) -> int | str:
    if value.lower() == EARLIEST:
        return EARLIEST
    number = _number(value)
    if number is None:
        raise reject("start", value, f"{EARLIEST!r} or the sequence of a batch")
    return number


def _whole(key: str, value: str, low: int) -> int:
    number = _number(value.strip())
    if number is None or number < low:
        raise reject(key, value, f"a whole number of at least {low}, with at most {DIGITS_MAX} digits")
    return number


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
    return int(text) if is_number else None


def _flag(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise reject(key, value, "true or false")
    return value.lower() == "true"


def _choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise reject(key, value, "one of " + ", ".join(repr(choice) for choice in choices))
    return value


def _unknown(key: str, what: str, allowed: Sequence[str]) -> InvalidConfig:
    near = difflib.get_close_matches(key, allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InvalidConfig(
        f"the data source 'buffer' has no option {key!r} for {what}{hint} Allowed: {', '.join(allowed)}, "
        "store.<option>",
        key=key,
    )
