"""Runs of numbers against Python's own sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from buffer.ledger.ranges import difference, holds, is_canonical, numbers, runs_of, size, union

small = st.sets(st.integers(0, 30))


@given(small, small)
def test_should_agree_with_sets(one: set[int], other: set[int]) -> None:
    runs, others = runs_of(one), runs_of(other)
    assert set(numbers(runs, below=1 << 40)) == one
    assert set(numbers(runs, below=7)) == {number for number in one if number < 7}
    assert size(runs) == len(one)
    assert union(runs, others) == runs_of(one | other)
    assert difference(runs, others) == runs_of(one - other)
    assert all(holds(runs, n) == (n in one) for n in range(32))
    assert is_canonical(runs, low=0)


def test_should_see_what_is_not_canonical() -> None:
    assert not is_canonical(((0, 1), (2, 3)), low=0)
    assert not is_canonical(((4, 3),), low=0)
    assert not is_canonical(((0, 1),), low=1)
