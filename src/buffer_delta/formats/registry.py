"""Which formats there are, and how a configuration's word becomes one. The one list of names.

`config` checks against it, the CLI offers it, the README is tested against it. A format's own module is imported
when it is first asked for: reading a configuration needs neither Arrow's parsers nor numpy. A new format is a new
module and a line here.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from buffer.errors import InvalidConfig

if TYPE_CHECKING:
    from buffer_delta.formats.base import Format

FORMATS: Mapping[str, str] = {
    "raw": "buffer_delta.formats.plain:RawFormat",
    "text": "buffer_delta.formats.plain:TextFormat",
    "json": "buffer_delta.formats.json.format:JsonFormat",
    "arrow": "buffer_delta.formats.arrow:ArrowFormat",
    "avro": "buffer_delta.formats.avro.format:AvroFormat",
    "protobuf": "buffer_delta.formats.protobuf.format:ProtobufFormat",
    "otlp": "buffer_delta.formats.otlp:OtlpFormat",
    "csv": "buffer_delta.formats.csv:CsvFormat",
    "keyvalue": "buffer_delta.formats.keyvalue:KeyValueFormat",
}


def format_names() -> tuple[str, ...]:
    return tuple(FORMATS)


def format_class(name: str) -> type[Format]:
    """The class of a name in the list, imported now."""
    module, _, found = FORMATS[name].partition(":")
    kind: type[Format] = getattr(importlib.import_module(module), found)
    return kind


def check_name(spec: Any) -> None:
    """Raise InvalidConfig unless `spec` is a name, a table whose `type` is one, or an object (maybe a Format)."""
    if _is_word(spec) and _name_in(spec) not in FORMATS:
        raise _unknown(spec)


def resolve_format(spec: Any) -> Format:
    """The format that a configuration means: a name, a table with `type` and options, or a Format as it is.

    Raises InvalidConfig that names the option which is wrong, and what is allowed.
    """
    if not _is_word(spec):
        from buffer_delta.formats.base import Format

        if isinstance(spec, Format):
            return spec
        raise _unknown(spec)
    name = _name_in(spec)
    if name not in FORMATS:
        raise _unknown(spec)
    table = spec if isinstance(spec, Mapping) else {}
    options = {str(key): value for key, value in table.items() if key != "type"}
    return format_class(name)(**options)


def _is_word(spec: Any) -> bool:
    return spec is None or isinstance(spec, str | int | float | Mapping)


def _name_in(spec: Any) -> str:
    name = spec.get("type") if isinstance(spec, Mapping) else spec
    return name if isinstance(name, str) else ""


def _unknown(spec: Any) -> InvalidConfig:
    near = difflib.get_close_matches(_name_in(spec), FORMATS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InvalidConfig(
        f"format={spec!r} is not allowed{hint}: it must be one of {', '.join(FORMATS)}, a table like "
        '{type = "json", schema = "id BIGINT, name STRING"}, or a Format',
        key="format",
        value=spec,
    )
