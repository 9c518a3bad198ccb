"""What fails travels to the driver by batch and reason, and very many as one number."""

from __future__ import annotations

import pytest

from buffer_delta.decode import failures
from buffer_delta.decode.failures import Failure, read, told, whole_batches
from tests.formats.format_support import peak_bytes


def failing(sequence: int, indices: range, reason: str = "odd") -> list[Failure]:
    return [Failure(sequence, f"b{sequence}", reason, "data", index) for index in indices]


def test_should_tell_every_failure_as_it_was() -> None:
    found = [
        Failure(1, "b1", "unreadable", "data"),
        *failing(2, range(3)),
        *failing(2, range(5, 6), "other"),
        Failure(3, "b3", "gone", "missing"),
        *failing(4, range(7, 9)),
    ]
    messages = list(told(found))
    assert len(messages) == 4
    assert read(messages) == found
    assert read([]) == []


def test_should_tell_two_million_of_one_batch_in_a_few_bytes() -> None:
    def many(count: int) -> list[Failure]:
        messages = list(told(failure for index in range(count) for failure in failing(7, range(index, index + 1))))
        assert sum(map(len, messages)) < 500
        return read(messages)

    (found,) = many(2_000_000)
    assert (found.sequence, found.index) == (7, None)
    assert found.error.startswith("2,000,000 of its entries cannot be loaded, too many to set aside one by one; the")
    assert len(many(100_000)) == 100_000, "as many as are told one by one"


def test_should_not_hold_more_of_a_range_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "ENTRIES_PER_BATCH_MAX", 50)
    monkeypatch.setattr(failures, "ENTRIES_MAX", 100)
    messages = [message for n in range(1, 8) for message in told(failing(n, range(10 * n)))]
    found = read(messages)
    single = [f for f in found if f.index is not None]
    assert [f.sequence for f in found if f.index is None] == [5, 6, 7]
    assert len(single) == 100
    assert whole_batches({1: 40, 2: 40, 3: 40, 4: 51}) == {1, 4}, "the largest, and of equal ones the first"
    assert whole_batches({}) == set()


@pytest.mark.thorough
def test_should_take_memory_for_a_batch_not_for_all_that_fails_in_it() -> None:
    def tell(count: int) -> int:
        return peak_bytes(lambda: list(told(f for i in range(count) for f in failing(1, range(i, i + 1)))))

    assert tell(400_000) < 1.5 * tell(101_000)
