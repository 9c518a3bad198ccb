"""The watch must tell a leak from what comes and goes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count

import psutil
import pytest

from tests.crash.processes import await_true
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
        ("handles", [5, 9, 40, 15, 18, 21, 24, 27, 30, 33, 36], True),  # one spike hides nothing
        ("handles", [5, 9, 9, 9, 10, 10, 11, 11, 11, 11, 11], False),
        ("handles", [5, 9, 9, 9, 10, 10, 11, 11, 12, 12, 12], True),
        ("handles", [5, 9, 20, 20, 9, 30, 30, 30, 30, 30, 30], False),  # in between it got down
        ("threads", [5, 9, 9, 9, 9, 9, 9, 9, 9, 12, 12], True),
        ("threads", [5, 9, 9, 9, 12, 12, 12, 9, 9, 9, 11], False),
        ("threads", [5, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14], True),
        ("threads", [5, 12, 12, 12, 12, 13, 13, 13, 13, 13, 13], False),
        ("threads", [100, 280, 280, 300, 285, 290, 310, 310, 310, 305, 305], False),  # a JVM's pools
        ("threads", [100, 280, 280, 300, 285, 290, 310, 310, 310, 320, 320], True),
        ("processes", [1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 5], True),
    ],
)
def test_should_find_growth_that_does_not_end(unit: str, values: list[float], leaks: bool) -> None:
    growth = judge(_series(unit, *values), END_S)
    assert (growth.leak is not None) is leaks, growth


@pytest.mark.parametrize("samples", [[], [(0.0, 1.0), (150.0, 2.0)], [(550.0, 1.0), (600.0, 1.0)]])
@pytest.mark.parametrize("unit", ["MiB", "handles"])
def test_should_not_let_pass_what_was_not_there_at_both_ends(unit: str, samples: list[tuple[float, float]]) -> None:
    growth = judge(Series("it", unit, samples), END_S)
    assert growth.leak == "watched, but not there at both ends"
    assert "not there" in str(growth)


def test_should_sample_this_process() -> None:
    now_s = iter([0.0, 25.0, 100.0, 101.0])
    watch = Watch(lambda: next(now_s))
    watch.follow("self", os.getpid())
    for _ in range(3):
        watch.sample()
    watch.note("heap", "MiB", 3.0)
    names = {series.name: series.samples for series in watch.series()}
    assert names["heap"] == [(101.0, 3.0)]
    assert names["self: memory"][0][1] > 10
    assert [at_s for at_s, _ in names["self: open handles"]] == [0.0, 25.0, 100.0]
    assert {growth.name for growth in watch.judge(100.0)} == {"heap", *(f"self: {what}" for what in WHAT)}


def test_should_miss_a_measure_that_nobody_took() -> None:
    watch = Watch(lambda: 0.0)
    watch.expect("heap", "MiB")
    (growth,) = watch.judge(END_S)
    assert growth.leak


def test_should_not_take_a_dead_process_for_a_small_one() -> None:
    seconds = count()
    watch = Watch(lambda: float(next(seconds)))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch.follow("it", process.pid)
        watch.sample()
        process.kill()
        await_true(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, 10.0)
        watch.sample()  # nobody has asked how it ended
    watch.sample()
    assert [len(series.samples) for series in watch.series()] == [1, 1, 1]


WORKERS = """
import subprocess, sys
child = [sys.executable, "-c", "import sys; held = [open('/dev/null') for _ in range(int(sys.argv[1]))]; "
         "print('up', flush=True); input()"]
pipe = subprocess.PIPE
children = [subprocess.Popen([*child, number], stdin=pipe, stdout=pipe) for number in sys.argv[1:]]
for each in children:
    each.stdout.readline()
print("up", flush=True)
input()
"""


def test_should_see_the_largest_of_those_whom_a_process_started() -> None:
    """As a driver starts a JVM, which starts the workers where batches are fetched and decoded."""
    watch = Watch(lambda: 0.0)
    command = [sys.executable, "-c", WORKERS, "40", "50", "200"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        *_, jvm = psutil.Process(process.pid).children()
        assert jvm.num_fds() > 200
        watch.follow_family("it", process.pid, besides={jvm.pid})
        watch.sample()
        process.kill()
    values = {series.name: [value for _, value in series.samples] for series in watch.series()}
    assert values.pop("it: processes") == [3]
    assert 50 < values["it, workers: open handles"][0] < 80
    assert values["it, workers: memory"][0] > 1
    assert values.keys() == {f"it, workers: {what}" for what in WHAT}


WHAT = ("memory", "open handles", "threads")
