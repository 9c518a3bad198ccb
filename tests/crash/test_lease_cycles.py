"""Workers that are killed, stopped and woken, on local files and on S3 over a bad network. All of it: `make crash`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.lease_cycles import LeaseCycles, Plan, Told, judge
from tests.crash.s3 import through
from tests.crash.verdict import Verdict
from tests.fault_proxy import FaultProxy, evenly
from tests.servers import S3Server, StoreAddress


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(120, workers=4, strikes=10, damaged=2, missing=2), id="with damaged and missing batches"),
        pytest.param(Plan(25, workers=3, strikes=4, in_order=True), id="in order"),
    ],
)
def test_should_work_off_every_batch_whatever_happens_to_the_workers(plan: Plan, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    address = StoreAddress(str(tmp_path / "store"), {})
    verdict = LeaseCycles(tmp_path / "cycles", seed, address, address).run(plan)
    assert verdict.violations == [], f"seed {seed}: {verdict}"


def test_should_do_so_on_s3_over_a_bad_network(s3_server: S3Server, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    direct = s3_server.new_address()
    with FaultProxy(s3_server.endpoint, evenly(0.15), seed, slow_s=(0.02, 1.2)) as proxy:
        cycles = LeaseCycles(tmp_path / "cycles", seed, direct, through(proxy, direct, timeout="1s"))
        verdict = cycles.run(Plan(25, workers=3, strikes=3))
    assert verdict.violations == [], f"seed {seed}: {verdict}"


def told(*leased: tuple[int, str, int, int], acked: list[tuple[int, str]], done: int = 2) -> Told:
    found = Told(done={f"{n}.{i}" for n in range(done) for i in range(3)}, acked=acked)
    for sequence, lease, count, at in leased:
        found.leased[sequence].append((lease, count, at))
    return found


@pytest.mark.parametrize(
    ("story", "violation"),
    [
        (told((0, "a", 1, 1), (1, "b", 1, 2), acked=[(0, "a"), (1, "b")]), None),
        (told((0, "a", 1, 1), (1, "b", 1, 2), acked=[(0, "a"), (1, "b")], done=1), "no handler has finished"),
        (told((0, "a", 1, 1), (1, "b", 1, 2), acked=[(0, "a"), (0, "a")]), "acked twice"),
        (told((0, "a", 1, 1), (0, "c", 1, 2), (1, "b", 1, 3), acked=[(0, "a"), (1, "b")]), "with one count"),
        (told((0, "a", 3, 1), (1, "b", 1, 2), acked=[(0, "a"), (1, "b")]), "counted that no worker was given"),
        (told((0, "a", 1, 1), (1, "b", 1, 2), acked=[(0, "z"), (1, "b")]), "a lease that nobody had"),
        (told((0, "a", 1, 5), (1, "b", 1, 2), acked=[(0, "a"), (1, "b")]), "started before the one ahead"),
    ],
)
def test_should_see_what_must_not_be(story: Told, violation: str | None) -> None:
    verdict = Verdict()
    judge(verdict, story, Plan(2, in_order=True), set(), disturbed=0)
    if violation is None:
        assert verdict.violations == []
    else:
        assert any(violation in text for text in verdict.violations), verdict
