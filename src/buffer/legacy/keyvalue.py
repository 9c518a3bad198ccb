"""A key-value pair of the older format as one entry of the new one. Pure.

    key length u32, little-endian | key | value

The value is the rest, so every pair has exactly one encoding and every entry of at least 4 bytes whose key fits is
exactly one pair. Both may be empty. `buffer migrate` writes such entries; `format="keyvalue"` decodes them.
"""

from __future__ import annotations

import struct

from buffer.errors import CorruptData, InvalidInput
from buffer.legacy.format import KeyValueEntry

_KEY_LENGTH = struct.Struct("<I")
assert _KEY_LENGTH.size == 4

KEY_BYTES_MAX = (1 << 32) - 1


def encode_pair(pair: KeyValueEntry) -> bytes:
    """The entry's bytes. Raises InvalidInput for a key longer than `KEY_BYTES_MAX`."""
    if len(pair.key) > KEY_BYTES_MAX:
        raise InvalidInput(f"a key of {len(pair.key):,} bytes does not fit an entry: at most {KEY_BYTES_MAX:,} do")
    return _KEY_LENGTH.pack(len(pair.key)) + pair.key + pair.value


def decode_pair(entry: bytes) -> KeyValueEntry:
    """The pair. Raises CorruptData if the entry is too short for a key length, or for the key that it announces."""
    if len(entry) < _KEY_LENGTH.size:
        raise CorruptData(f"an entry of {len(entry)} bytes is no key-value pair: a key's length alone takes 4")
    end = _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(entry)[0]
    if end > len(entry):
        raise CorruptData(
            f"an entry of {len(entry):,} bytes is no key-value pair: its key would end at byte {end:,}", offset=0
        )
    return KeyValueEntry(entry[_KEY_LENGTH.size : end], entry[end:])
