"""The watch must tell a leak from what comes and goes."""

from __future__ import annotations

import os

import pytest

from tests.soak.watch import Series, Watch, judge

END_S = 600.0


def _series(unit: str, *values: float) -> Series:
    series = Series("it", unit)
    for index, value in enumerate(values):
        series.add(END_S * index / (len(values) - 1), value)
    return series


@pytest.mark.parametrize(
    ("unit", "values", "leaks"),
    [
        ("MiB", [50, 100, 100, 101, 104, 105, 106, 107, 108, 109, 109], False),
        ("MiB", [50, 100, 100, 101, 104, 105, 110, 115, 120, 121, 125], True),
        ("MiB heap", [50, 100, 130, 101, 130, 125, 120, 101, 150, 108, 150], False),
        ("MiB heap", [50, 100, 130, 101, 130, 125, 120, 101, 150, 112, 150], True),
        ("handles", [5, 9, 12, 30, 11, 14, 9, 13, 40, 12, 13], False),
        ("handles", [5, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36], True),
        ("threads", [5, 9, 9, 9, 9, 9, 9, 9, 9, 12, 12], True),
        ("threads", [5, 9, 9, 9, 12, 12, 12, 9, 9, 9, 11], False),
        ("processes", [1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 5], True),
    ],
)
def test_should_find_growth_that_does_not_end(unit: str, values: list[float], leaks: bool) -> None:
    growth = judge(_series(unit, *values), END_S)
    assert growth is not None
    assert (growth.leak is not None) is leaks, growth


def test_should_say_nothing_of_what_was_not_there_at_both_ends() -> None:
    assert judge(Series("it", "MiB", [(0.0, 1.0), (30.0, 2.0)]), END_S) is None


def test_should_sample_this_process() -> None:
    now_s = iter([0.0, 25.0, 100.0, 101.0])
    watch = Watch(lambda: next(now_s))
    watch.follow("self", os.getpid(), family=True)
    for _ in range(3):
        watch.sample()
    watch.note("heap", "MiB", 3.0)
    names = {series.name: series.samples for series in watch.series()}
    assert names["heap"] == [(101.0, 3.0)]
    assert names["self: memory"][0][1] > 10
    assert [at_s for at_s, _ in names["self: open handles"]] == [0.0, 25.0, 100.0]
    assert {growth.name for growth in watch.judge(100.0)} == {f"self: {what}" for what in WHAT}


WHAT = ("memory", "open handles", "threads", "processes")
