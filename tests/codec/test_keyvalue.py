"""Key-value pairs as entries: exact in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.codec.keyvalue import decode_pair, encode_pair
from buffer.errors import CorruptData


@pytest.mark.parametrize(
    ("key", "value", "entry"),
    [
        (b"", b"", b"\x01\x00\x00\x00\x00"),
        (b"k", b"", b"\x01\x01\x00\x00\x00k"),
        (b"", b"v", b"\x01\x00\x00\x00\x00v"),
        (b"key", b"\x00\xff", b"\x01\x03\x00\x00\x00key\x00\xff"),
    ],
)
def test_should_encode_pairs(key: bytes, value: bytes, entry: bytes) -> None:
    assert encode_pair(key, value) == entry
    assert decode_pair(entry) == (key, value)


@given(key=st.binary(), value=st.binary())
def test_should_decode_what_was_encoded(key: bytes, value: bytes) -> None:
    assert decode_pair(encode_pair(key, value)) == (key, value)


@given(entry=st.binary() | st.binary().map(lambda rest: b"\x01" + rest))
def test_should_have_one_encoding_only(entry: bytes) -> None:
    try:
        pair = decode_pair(entry)
    except CorruptData:
        return
    assert encode_pair(*pair) == entry


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (b"", "its head alone takes 5"),
        (b"\x01\x00\x00\x00", "its head alone takes 5"),
        (b"\x01\x01\x00\x00\x00", "its key would end at byte 6"),
        (b"\x01\xff\xff\xff\xffabc", "its key would end at byte 4,294,967,300"),
        (b"\x02\x00\x00\x00\x00", "of version 1: it begins with 2"),
        (b'{"a": 1}', "of version 1: it begins with 123"),
    ],
)
def test_should_refuse_entries_that_are_no_pairs(entry: bytes, says: str) -> None:
    with pytest.raises(CorruptData, match=f"an entry of {len(entry)} bytes is no key-value pair.*{says}"):
        decode_pair(entry)
