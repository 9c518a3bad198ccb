"""A key and a value as one entry of a batch: `buffer migrate` writes them, `format="keyvalue"` reads them. Pure.

    version u8 = 1 | key length u32, little-endian | key | value

The value is the rest, so every pair has exactly one encoding, and every entry of version 1 whose key fits is exactly
one pair. Key and value may be empty. An entry of another version is refused, not guessed at.
"""

from __future__ import annotations

import struct

from buffer.errors import CorruptData, InvalidInput

VERSION = 1
KEY_BYTES_MAX = (1 << 32) - 1

HEAD = struct.Struct("<BI")
assert HEAD.size == 5


def encode_pair(key: bytes, value: bytes) -> bytes:
    """The entry's bytes. Raises InvalidInput for a key longer than `KEY_BYTES_MAX`."""
    if len(key) > KEY_BYTES_MAX:
        raise InvalidInput(f"a key of {len(key):,} bytes does not fit an entry: at most {KEY_BYTES_MAX:,} do")
    return HEAD.pack(VERSION, len(key)) + key + value


def decode_pair(entry: bytes) -> tuple[bytes, bytes]:
    """Key and value. Raises CorruptData, which says what is wrong."""
    problem = pair_problem(entry[: HEAD.size], len(entry))
    if problem is not None:
        raise CorruptData(problem, offset=0)
    end = HEAD.size + HEAD.unpack_from(entry)[1]
    return entry[HEAD.size : end], entry[end:]


def pair_problem(head: bytes, size: int) -> str | None:
    """Why an entry of `size` bytes that begins with `head` is no pair; None if it is one."""
    if len(head) < HEAD.size:
        return f"an entry of {size} bytes is no key-value pair: its head alone takes {HEAD.size}"
    version, key_bytes = HEAD.unpack(head)
    if version != VERSION:
        return f"an entry of {size:,} bytes is no key-value pair of version {VERSION}: it begins with {version}"
    if HEAD.size + key_bytes > size:
        end = HEAD.size + key_bytes
        return f"an entry of {size:,} bytes is no key-value pair: its key would end at byte {end:,}"
    return None
