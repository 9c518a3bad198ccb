"""Retry policies: values that decide."""

from __future__ import annotations

import pytest

from buffer.errors import InvalidInput
from buffer.leases.retry import Again, Exponential, Fixed, PerException, Untouched


def test_should_double_up_to_the_longest() -> None:
    policy = Exponential(first_ms=100, max_ms=1_000)
    assert [policy.decide(ValueError(), count).delay_ms for count in (1, 2, 3, 4, 5, 10_000)] == [
        *(100, 200, 400, 800, 1_000, 1_000)
    ]


def test_should_choose_by_the_nearest_class_of_the_error() -> None:
    policy = PerException({OSError: Fixed(1), TimeoutError: Untouched(2)}, otherwise=Fixed(3))
    assert policy.decide(TimeoutError(), 1) == Again(2, counts=False)
    assert policy.decide(ConnectionError(), 1) == Again(1)
    assert policy.decide(KeyError(), 1) == Again(3)


@pytest.mark.parametrize(
    "make", [lambda: Fixed(-1), lambda: Exponential(0), lambda: Exponential(10, 9), lambda: Untouched(1 << 60)]
)
def test_should_refuse_pauses_that_cannot_be_meant(make: object) -> None:
    with pytest.raises(InvalidInput):
        make()  # type: ignore[operator]
