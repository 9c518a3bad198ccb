"""Bytes that are filled in place are `bytes` like any other."""

from __future__ import annotations

from typing import Any

import pytest

from buffer import _new_bytes
from buffer._new_bytes import _HUGE_FROM_BYTES, new_bytes
from buffer.batch import decode_batch, encode_batch

SIZES = [0, 1, 100, _HUGE_FROM_BYTES - 1, _HUGE_FROM_BYTES, _HUGE_FROM_BYTES + 4097]


def write_pattern(out: Any) -> None:
    memoryview(out).cast("B")[:] = pattern(out.size)


def pattern(size: int) -> bytes:
    return (b"0123456789abcdef!" * (size // 17 + 1))[:size]


@pytest.mark.parametrize("can_advise", [True, False], ids=["in place", "copied"])
@pytest.mark.parametrize("size", SIZES)
def test_should_hold_what_was_written(size: int, can_advise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_advise:
        monkeypatch.setattr(_new_bytes, "_CAN_ADVISE", False)
    made = new_bytes(size, write_pattern)
    assert type(made) is bytes
    assert made == pattern(size)
    assert hash(made) == hash(pattern(size))


def test_should_make_a_new_object_each_time() -> None:
    first = new_bytes(_HUGE_FROM_BYTES, write_pattern)
    second = new_bytes(_HUGE_FROM_BYTES, lambda out: memoryview(out).cast("B").__setitem__(0, 1))
    assert first == pattern(_HUGE_FROM_BYTES)
    assert second[0] == 1


def test_should_pass_on_what_goes_wrong_while_filling() -> None:
    def fail(_out: Any) -> None:
        raise RuntimeError("no entries left")

    with pytest.raises(RuntimeError, match="no entries left"):
        new_bytes(_HUGE_FROM_BYTES, fail)


def test_should_encode_a_batch_that_is_large_enough_for_it() -> None:
    entries = [bytes([number % 251]) * (number % 300) for number in range(70_000)]
    data = encode_batch(entries)
    assert len(data) > _HUGE_FROM_BYTES
    assert decode_batch(data) == entries
