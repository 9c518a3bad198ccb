"""The older ingest format, byte for byte: batches of key-value pairs, the two manifests, the names. Pure.

    batch               {prefix}/{uuid4}.json      [{"key":"<base64>","value":"<base64>"},…]
    producer manifest   {path}                     {"pending":[location,…]}
    consumer manifest   {path with .consumer}      {"claimed":{location:ms,…},"done":[location,…]}

What is read is what the implementation of that time read; what is written is compact JSON, as it wrote it:

- Base64 is the standard alphabet. Padding may be missing when read and is always written.
- A batch's entry may be a list of two, a manifest a list of its fields: its parser took those for objects.
- Unknown fields are ignored, and gone after the next write. A known field given twice is refused; a location
  that is claimed twice has the last of its times.
- Times are whole numbers of 64 bits with a sign.

Whatever else is wrong is `CorruptBatch` or `CorruptManifest`, and says what and where.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from buffer.errors import CorruptBatch, CorruptData, CorruptManifest

TIME_MIN_MS, TIME_MAX_MS = -(1 << 63), (1 << 63) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyValueEntry:
    """One pair; either may be empty."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class ProducerManifest:
    """Where the batches lie, in the order in which they were appended."""

    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerManifest:
    """Who works on what: `claimed` maps a location to the time of its claim, `done` lists what was acked."""

    claimed: Mapping[str, int] = field(default_factory=dict)
    done: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.claimed and not self.done


# Names


def batch_location(prefix: str, name: UUID) -> str:
    return f"{prefix}/{name}.json"


def consumer_manifest_path(manifest_path: str) -> str:
    return _path_beside(manifest_path, "consumer")


def parked_path(manifest_path: str) -> str:
    """Ours alone: what could not be read. The implementation of that time has no such file and looks for none."""
    return _path_beside(manifest_path, "parked")


def moves_path(manifest_path: str) -> str:
    """Ours too: which numbers in the new queue the pairs of which batch have, while it is moved."""
    return _path_beside(manifest_path, "moves")


def _path_beside(manifest_path: str, word: str) -> str:
    """Put a word before the last dot of the whole path, folders included: that is how the names were made."""
    before, dot, after = manifest_path.rpartition(".")
    return f"{before}.{word}.{after}" if dot else f"{manifest_path}.{word}"


def object_location(location: str) -> str:
    """Where a location of a manifest is in the store: empty segments count for nothing, as they did then.

    Percent signs are letters like any other. The writer of that time has put them into both the name and the
    manifest, so what it wrote under `%` or `ü` can be read here, although it could not read it itself.
    """
    return "/".join(segment for segment in location.split("/") if segment)


# Batches


def encode_entry(entry: KeyValueEntry) -> bytes:
    """One pair as it stands in a batch. Join them with `join_entries`."""
    return b'{"key":"%b","value":"%b"}' % (base64.b64encode(entry.key), base64.b64encode(entry.value))


def join_entries(encoded: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(encoded) + b"]"


def encode_batch(entries: Iterable[KeyValueEntry]) -> bytes:
    return join_entries(map(encode_entry, entries))


def decode_batch(data: bytes, location: str | None = None) -> list[KeyValueEntry]:
    """The pairs of a batch, in order. Raises CorruptBatch."""

    def decode() -> list[KeyValueEntry]:
        # Bad UTF-8 can only hide in fields that are ignored: base64 is ASCII, and checked.
        document = _parse(data.decode("utf-8", "surrogateescape"))
        if not isinstance(document, list):
            raise _Wrong(f"a batch is a list of entries, not {_kind(document)}")
        return [_entry(index, item) for index, item in enumerate(document)]

    return _located(decode, CorruptBatch, "batch", location)


def _entry(index: int, item: Any) -> KeyValueEntry:
    key, value = _fields(item, ("key", "value"), f"entry {index}")
    return KeyValueEntry(_decode_base64(key, f"key of entry {index}"), _decode_base64(value, f"value of entry {index}"))


def _decode_base64(text: Any, what: str) -> bytes:
    if not isinstance(text, str):
        raise _Wrong(f"the {what} is {_kind(text)}, not base64 text")
    body = text.rstrip("=")
    missing = -len(body) % 4
    if len(text) - len(body) > missing:
        raise _Wrong(f"the {what} is no base64: it ends with {len(text) - len(body)} '=' where {missing} would do")
    try:
        decoded = base64.b64decode(body + "=" * missing, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Wrong(f"the {what} is no base64 of the standard alphabet: {error}") from error
    tail = len(decoded) % 3
    if tail and not body.endswith(base64.b64encode(decoded[-tail:]).decode().rstrip("=")):
        raise _Wrong(f"the {what} is no base64: its last letter says more than a byte can hold")
    return decoded


# Manifests


def encode_producer_manifest(manifest: ProducerManifest) -> bytes:
    return _dump({"pending": manifest.pending})


def decode_producer_manifest(data: bytes | None, location: str | None = None) -> ProducerManifest:
    """The manifest; an empty one where there is no object. Raises CorruptManifest."""
    if data is None:
        return ProducerManifest()

    def decode() -> ProducerManifest:
        (pending,) = _fields(_parse(data.decode()), ("pending",), "a producer manifest")
        return ProducerManifest(_locations(pending, "pending"))

    return _located(decode, CorruptManifest, "producer manifest", location)


def encode_consumer_manifest(manifest: ConsumerManifest) -> bytes:
    return _dump({"claimed": dict(manifest.claimed), "done": manifest.done})


def decode_consumer_manifest(data: bytes | None, location: str | None = None) -> ConsumerManifest:
    """The manifest; an empty one where there is no object. Raises CorruptManifest."""
    if data is None:
        return ConsumerManifest()

    def decode() -> ConsumerManifest:
        claimed, done = _fields(_parse(data.decode()), ("claimed", "done"), "a consumer manifest")
        if not isinstance(claimed, _Pairs):
            raise _Wrong(f"claimed is {_kind(claimed)}, not an object of locations and times")
        for where, time in claimed.items:
            _location(where, "claimed")
            if type(time) is not int or not TIME_MIN_MS <= time <= TIME_MAX_MS:
                raise _Wrong(f"the claim of {where!r} has the time {time!r}, not a whole number of 64 bits")
        return ConsumerManifest(dict(claimed.items), _locations(done, "done"))

    return _located(decode, CorruptManifest, "consumer manifest", location)


def _locations(items: Any, name: str) -> tuple[str, ...]:
    if not isinstance(items, list):
        raise _Wrong(f"{name} is {_kind(items)}, not a list of locations")
    return tuple(_location(item, name) for item in items)


def _location(item: Any, name: str) -> str:
    if not isinstance(item, str):
        raise _Wrong(f"{name} holds {item!r}, which is {_kind(item)} and not a location")
    if any("\ud800" <= letter <= "\udfff" for letter in item):
        raise _Wrong(f"{name} holds {item!r}, which is no text: it has half a surrogate pair")
    return item


# JSON


class _Wrong(Exception):
    """What breaks the format, before it is known where the bytes came from."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A JSON object as it was written: fields given twice are still there."""

    items: list[tuple[str, Any]]


def _parse(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise _Wrong(f"{constant} is no JSON")

    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_constant=refuse)
    except RecursionError:
        raise _Wrong("it is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number of thousands of digits
        raise _Wrong(f"it is no JSON: {error}") from error


def _fields(item: Any, names: Sequence[str], what: str) -> list[Any]:
    """The values of these fields, of an object or of a list that has exactly them."""
    if isinstance(item, _Pairs):
        values: list[Any] = []
        for name in names:
            found = [value for key, value in item.items if key == name]
            if len(found) != 1:
                raise _Wrong(f"{what} has {'no' if not found else 'more than one'} field {name!r}")
            values += found
        return values
    if not isinstance(item, list):
        raise _Wrong(f"{what} must be an object, not {_kind(item)}")
    if len(item) != len(names):
        raise _Wrong(f"{what} as a list must have {len(names)} items, {', '.join(names)}, not {len(item)}")
    return item


def _kind(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    kinds = {type(None): "null", bool: "a truth value", str: "text", list: "a list"}
    return kinds.get(type(value), "a number")


def _dump(document: Any) -> bytes:
    """As serde_json writes it: compact, and letters beyond ASCII as they are."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _located(decode: Callable[[], T], error: type[CorruptData], what: str, location: str | None) -> T:
    where = "" if location is None else f" at {location!r}"
    try:
        return decode()
    except UnicodeDecodeError as cause:
        raise error(f"the {what}{where} is damaged: it is no UTF-8 ({cause.reason})", location=location) from cause
    except _Wrong as cause:
        raise error(f"the {what}{where} is damaged: {cause}", location=location) from cause
