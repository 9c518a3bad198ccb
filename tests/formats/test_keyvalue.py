"""The format `keyvalue`: pairs become columns byte for byte; what does not fit is rescued or bad, never changed."""

from __future__ import annotations

import base64
import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.codec.keyvalue import decode_pair, encode_pair
from buffer.errors import CorruptData, InvalidConfig
from buffer_delta.formats import KeyValueFormat, Parsed, resolve_format

ENTRIES = st.lists(st.one_of(st.binary(max_size=12), st.builds(encode_pair, st.binary(), st.binary())), max_size=12)


def parse(entries: list[bytes], **options: str) -> Parsed:
    return KeyValueFormat(**options).parse(pa.array(entries, pa.binary()))


def rows_of(parsed: Parsed) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = parsed.rows.to_pylist()
    return rows


def test_should_give_key_and_value_as_bytes() -> None:
    parsed = parse([encode_pair(b"k", b"\xff\x00"), encode_pair(b"", b""), encode_pair(b"only", b"")])
    assert rows_of(parsed) == [
        {"key": b"k", "value": b"\xff\x00", "_rescued_data": None},
        {"key": b"", "value": b"", "_rescued_data": None},
        {"key": b"only", "value": b"", "_rescued_data": None},
    ]
    assert parsed.entries is None
    assert parsed.bad == []


@given(before=ENTRIES, entries=ENTRIES, after=ENTRIES)
def test_should_agree_with_the_codec_on_any_bytes(
    before: list[bytes], entries: list[bytes], after: list[bytes]
) -> None:
    """Also in the middle of a larger array, as the entries of a batch come in pieces."""
    array = pa.array([*before, *entries, *after], pa.binary()).slice(len(before), len(entries))
    parsed = KeyValueFormat().parse(array)
    expected, bad = [], []
    for index, entry in enumerate(entries):
        try:
            expected.append((index, *decode_pair(entry)))
        except CorruptData as error:
            bad.append((index, str(error)))
    parsed.rows.validate(full=True)
    indices = range(len(entries)) if parsed.entries is None else parsed.entries.tolist()
    found = [(index, row["key"], row["value"]) for index, row in zip(indices, rows_of(parsed), strict=True)]
    assert found == expected
    assert parsed.bad == bad


def test_should_take_text_as_it_is_and_rescue_what_is_none() -> None:
    parsed = parse([encode_pair("ü".encode(), b"ok"), encode_pair(b"k", b"\xff")], key="text", value="text")
    rescued = json.dumps({"value": base64.b64encode(b"\xff").decode()})
    assert rows_of(parsed) == [
        {"key": "ü", "value": "ok", "_rescued_data": None},
        {"key": "k", "value": None, "_rescued_data": rescued},
    ]
    assert parsed.bad == []


@pytest.mark.parametrize(
    "text",
    ['{"a": 1.0000000000000000001, "b": [1e999]}', "[]", '"x"', "12345678901234567890123", " null ", "-0", "1.50"],
)
def test_should_keep_json_to_the_letter(text: str) -> None:
    assert rows_of(parse([encode_pair(b"", text.encode())], value="json"))[0]["value"] == text


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":1,"a":2}', b"nul", b"\xff", b"[" * 300 + b"]" * 300, b'"\\ud800"'])
def test_should_rescue_what_is_no_json(text: bytes) -> None:
    (row,) = rows_of(parse([encode_pair(text, text)], key="json", value="json"))
    encoded = base64.b64encode(text).decode()
    assert row == {"key": None, "value": None, "_rescued_data": json.dumps({"key": encoded, "value": encoded})}


def test_should_call_an_entry_bad_whose_value_does_not_fit_if_asked() -> None:
    parsed = parse(
        [encode_pair(b"a", b"1"), encode_pair(b"b", b"{"), b"no pair", encode_pair(b"\xff", b"2")],
        key="text",
        value="json",
        on_mismatch="dead_letter",
    )
    assert [row["key"] for row in rows_of(parsed)] == ["a"]
    assert parsed.entries is not None
    assert parsed.entries.tolist() == [0]
    assert [index for index, _ in parsed.bad] == [1, 2, 3]
    assert parsed.bad[0][1].startswith("the value: not JSON")
    assert parsed.bad[1][1] == "an entry of 7 bytes is no key-value pair of version 1: it begins with 110"
    assert parsed.bad[2][1].startswith("the key: not UTF-8")


def test_should_say_which_options_there_are() -> None:
    with pytest.raises(InvalidConfig, match="value"):
        KeyValueFormat(value="xml")
    with pytest.raises(InvalidConfig, match="on_mismatch"):
        KeyValueFormat(on_mismatch="drop")
    with pytest.raises(InvalidConfig, match="another name than 'key' and 'value'"):
        KeyValueFormat(rescued_data="Value")
    with pytest.raises(InvalidConfig, match="leaves no column"):
        KeyValueFormat(rescued_data=None)
    without = KeyValueFormat(rescued_data=None, on_mismatch="dead_letter")
    assert without.schema.names == ["key", "value"]
    assert without.rescued_column is None


def test_should_be_found_by_name_travel_and_have_a_digest_of_its_own() -> None:
    form = resolve_format({"type": "keyvalue", "key": "text", "value": "json"})
    assert form == KeyValueFormat(key="text", value="json")
    assert pickle.loads(pickle.dumps(form)) == form
    assert form.digest() != KeyValueFormat().digest()
    assert form.digest() == "5a195c3b84d7a5af"
    assert form.schema == pa.schema([("key", pa.string()), ("value", pa.string()), ("_rescued_data", pa.string())])
