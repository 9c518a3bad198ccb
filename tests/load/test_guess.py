"""Which ranges of evolving data are tried with the columns that their table has."""

from __future__ import annotations

from itertools import pairwise

from buffer_delta.load.guess import SKIPPED_MAX, Tries


def tried(tries: Tries, ranges: int, *, right: bool) -> list[int]:
    found = []
    for number in range(ranges):
        if tries.is_due():
            found.append(number)
            tries.tell(right=right)
    return found


def test_should_try_every_range_while_it_is_right() -> None:
    assert tried(Tries(), 5, right=True) == [0, 1, 2, 3, 4]


def test_should_try_less_and_less_often_while_it_is_wrong_and_never_stop_trying() -> None:
    tries = Tries()
    assert tried(tries, 20, right=False) == [0, 2, 5, 10, 19]
    later = tried(tries, 1000, right=False)
    gaps = {after - before for before, after in pairwise(later[3:])}
    assert gaps == {SKIPPED_MAX + 1}


def test_should_try_every_range_again_once_it_was_right() -> None:
    tries = Tries()
    tried(tries, 19, right=False)
    while not tries.is_due():
        pass
    tries.tell(right=True)
    assert tried(tries, 3, right=True) == [0, 1, 2]
