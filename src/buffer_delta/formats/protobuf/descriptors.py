"""Message types from descriptor sets, as `protoc --include_imports --descriptor_set_out=…` writes them.

The only importer of the library, which is optional. Types do not pickle, sets do: each process makes its own.
"""

from __future__ import annotations

import base64
import binascii
import json
from functools import lru_cache
from typing import Any

from buffer.errors import InvalidConfig

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError as DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet as UnknownFieldSet
except ImportError as error:
    raise InvalidConfig(
        "the format 'protobuf' needs a library that is not installed: pip install 'buffer-delta[protobuf]'",
        key="format",
    ) from error


def json_text(message: Any) -> tuple[str, bool]:
    """A message in JSON, and whether that is all of it: fields that its type does not have are left out."""
    found = json_format.MessageToDict(message)
    back = json_format.ParseDict(found, type(message)())
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return text, bool(back.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True))


def wrong(what: str) -> InvalidConfig:
    return InvalidConfig(f"descriptor_set: {what}", key="descriptor_set")


def set_bytes(given: Any) -> bytes:
    """A descriptor set, given as bytes or in base64. Raises InvalidConfig."""
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str):
        raise wrong(f"it must be bytes, or base64 of them, not {type(given).__name__}")
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong(f"it is no base64: {error}") from error


@lru_cache(maxsize=64)
def message_class(descriptors: bytes, name: str) -> Any:
    """The class of the message type `name`. Raises InvalidConfig."""
    pool = _pool(descriptors)
    try:
        found = pool.FindMessageTypeByName(name)
    except KeyError as error:
        known = sorted(m.full_name for file in _files(descriptors) for m in _messages(pool, file))
        raise InvalidConfig(
            f"message={name!r} is not in the descriptor set, which has {', '.join(known[:20]) or 'none'}",
            key="message",
            value=name,
        ) from error
    return message_factory.GetMessageClass(found)


@lru_cache(maxsize=4096)
def message_at(descriptors: bytes, path: tuple[int, ...]) -> str | None:
    """The message type that a Confluent frame means: the place in the last file, and then inside of messages."""
    file = _pool(descriptors).FindFileByName(_files(descriptors)[-1].name)
    level = [file.message_types_by_name[m.name] for m in _files(descriptors)[-1].message_type]
    found = None
    for at in path:
        if not 0 <= at < len(level):
            return None
        found = level[at]
        level = list(found.nested_types)
    return found.full_name if found is not None else None


def _files(descriptors: bytes) -> Any:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise wrong(f"it is none: {error}") from error
    if not files:
        raise wrong("it is empty")
    return files


@lru_cache(maxsize=64)
def _pool(descriptors: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in _files(descriptors):
        try:
            pool.Add(file)
            pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            raise wrong(f"{file.name!r} does not fit the others: {error}; write it with --include_imports") from error
    return pool


def _messages(pool: Any, file: Any) -> list[Any]:
    return list(pool.FindFileByName(file.name).message_types_by_name.values())
