"""Key-value pairs as entries of the new format: exact in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import CorruptData
from buffer.legacy.format import KeyValueEntry
from buffer.legacy.keyvalue import decode_pair, encode_pair


@pytest.mark.parametrize(
    ("key", "value", "entry"),
    [
        (b"", b"", b"\x00\x00\x00\x00"),
        (b"k", b"", b"\x01\x00\x00\x00k"),
        (b"", b"v", b"\x00\x00\x00\x00v"),
        (b"key", b"\x00\xff", b"\x03\x00\x00\x00key\x00\xff"),
    ],
)
def test_should_encode_pairs(key: bytes, value: bytes, entry: bytes) -> None:
    assert encode_pair(KeyValueEntry(key, value)) == entry
    assert decode_pair(entry) == KeyValueEntry(key, value)


@given(key=st.binary(), value=st.binary())
def test_should_decode_what_was_encoded(key: bytes, value: bytes) -> None:
    assert decode_pair(encode_pair(KeyValueEntry(key, value))) == KeyValueEntry(key, value)


@given(entry=st.binary())
def test_should_have_one_encoding_only(entry: bytes) -> None:
    try:
        pair = decode_pair(entry)
    except CorruptData:
        return
    assert encode_pair(pair) == entry


@pytest.mark.parametrize("entry", [b"", b"\x00\x00\x00", b"\x01\x00\x00\x00", b"\xff\xff\xff\xffabc"])
def test_should_refuse_entries_that_are_no_pairs(entry: bytes) -> None:
    with pytest.raises(CorruptData, match=f"an entry of {len(entry)} bytes is no key-value pair"):
        decode_pair(entry)
