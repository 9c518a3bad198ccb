"""What errors quote of a record is not shown, whatever characters the record has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from buffer_delta.formats import JsonFormat
from buffer_delta.serve.facts import ERROR_CHARS_MAX
from buffer_delta.serve.masking import mask


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("not JSON: Expecting value at character 0", "not JSON: Expecting value at character 0"),
        ("2 batches cannot be read: 'secret' is no number", "2 batches cannot be read: '…' is no number"),
        (
            "[CAST_INVALID_INPUT] The value 'O'Brien, secret' of the type \"STRING\" is malformed",
            "[CAST_INVALID_INPUT] The value '…'",
        ),
        ("The value 'rock 'n' secret' is malformed", "The value '…' is malformed"),
        ("cannot be read: 'it\\'s \"secret\"' here", "cannot be read: '…'"),
        ("the table's rules forbid 'secret'", "the table'…'"),
        ("Couldn't read 'secret', a record", "Couldn'…'"),
        ("a value that was cut: 'O'Brien, secr…", "a value that was cut: '…'"),
        ('got: {"name": "secret"}', "got: …"),
        ("row = [1, secret]", "row = …"),
        ("403: HEAD https://a.host/c?timeout=90&sig=secret&x=1", "403: HEAD https://a.host/c?timeout=90&sig=…&x=1"),
    ],
)
def test_should_show_nothing_of_a_record(said: str, shown: str) -> None:
    assert mask(said) == shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("column 'card' (int32) cannot hold 41111111", "column '…' (int32) cannot hold …"),
        ("column 'a' (int32) cannot hold 41111111; column 'b' (bool) cannot hold 7", "column '…'"),
        ("column 'a' (int32) cannot hold {\"x\":41111111}", "column '…'"),
        ("column 'a' (list<item: int32>) cannot hold [41111111,5]", "column '…' (list<item: int32>) cannot hold …"),
        ("the column 'pay': float cannot hold 41111111.1 (double)", "the column '…': float cannot hold …"),
        (
            "no stream of these columns: Failed to parse value: 41111111",
            "no stream of these columns: Failed to parse value: …",
        ),
        ("Float value 41111111.500000 was truncated converting to int32", "Float value …"),
        ("Casting from timestamp[ns] to timestamp[us] would lose data: 41111111", None),
        ('[CAST_OVERFLOW] The value 41111111L of the type "BIGINT" cannot be cast', "[CAST_OVERFLOW] The value …"),
        ("[NUMERIC_VALUE_OUT_OF_RANGE] 41111111.43 cannot be represented as Decimal(4, 2)", None),
        ("CHECK constraint paid (pay > 0) violated by row with values:\n - pay : -41111111", None),
        ("no value for the column 'pay', which is NOT NULL", "no value for the column '…', which is NOT NULL"),
        ("Decimal value does not fit in precision 4", "Decimal value does not fit in precision 4"),
    ],
)
def test_should_show_no_value_that_is_told_without_quotes(said: str, shown: str | None) -> None:
    found = mask(said)
    assert "41111111" not in found
    assert shown is None or found == shown


def test_should_show_no_number_that_a_column_could_not_hold() -> None:
    form = JsonFormat("card INT, cards ARRAY<INT>", on_mismatch="dead_letter")
    entries = [b'{"card": 4111111111111111}', b'{"cards": [4111111111111111]}', b'{"card": {"x": 4111111111111111}}']
    reasons = [reason for _, reason in form.parse(pa.array(entries, pa.binary())).bad]
    assert len(reasons) == len(entries)
    assert not any("4111" in mask(reason) for reason in reasons)


def test_should_not_show_what_follows_a_quote_in_a_message_that_was_cut() -> None:
    assert mask(("'a' is " + "x" * ERROR_CHARS_MAX)[:ERROR_CHARS_MAX]) == "'…'"
