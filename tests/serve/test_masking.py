"""What errors quote of a record is not shown, whatever characters the record has."""

from __future__ import annotations

import pytest

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
    ],
)
def test_should_show_nothing_of_a_record(said: str, shown: str) -> None:
    assert mask(said) == shown
    assert "secret" not in shown


def test_should_not_show_what_follows_a_quote_in_a_message_that_was_cut() -> None:
    assert mask(("'a' is " + "x" * ERROR_CHARS_MAX)[:ERROR_CHARS_MAX]) == "'…'"
