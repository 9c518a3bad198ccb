"""Workers that are killed, stopped and woken, on local files and on S3 over a bad network. All of it: `make crash`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.lease_cycles import LeaseCycles, Plan, judge, read_logs
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


LINES = [
    "leased 0 a 1 10",
    "done 0 0.0 a 11",
    "done 0 0.1 a 12",
    "done 0 0.2 a 13",
    "acked 0 a",
    "leased 1 b 1 20",
    "done 1 1.0 b 21",
    "done 1 1.1 b 22",
    "done 1 1.2 b 23",
    "acked 1 b",
]
"""The log of a worker to which nothing happens."""


def without(*lines: str) -> list[str]:
    return [line for line in LINES if line not in lines]


def instead(line: str, *others: str) -> list[str]:
    return [other for found in LINES for other in (others if found == line else (found,))]


STOPPED = ["leased 0 z 1 5", *without("leased 0 a 1 10"), "leased 0 a 2 10", "done 0 0.0 z 90"]
"""Another worker was stopped with the batch in its hands, and goes on when everything is over."""


@pytest.mark.parametrize(
    ("lines", "violation"),
    [
        (LINES, None),
        (without("acked 0 a"), None),  # killed between the write and its line
        (STOPPED, None),
        ([*instead("leased 1 b 1 20", "leased 1 b 2 20"), "snoozed 1"], None),
        (without("done 1 1.2 b 23"), "no handler has finished"),
        ([*LINES, "acked 0 a"], "acked twice"),
        ([*LINES, "leased 0 c 1 9"], "with one count"),
        (instead("leased 0 a 1 10", "leased 0 a 3 10"), "counted that no worker was given"),
        ([*instead("leased 0 a 1 10", "leased 0 a 3 10"), "snoozed 0"], "counted that no worker was given"),
        ([*instead("leased 0 a 1 10", "leased 0 a 2 10"), "snoozed 7"], "counted that no worker was given"),
        (instead("acked 0 a", "acked 0 z"), "a lease that nobody had"),
        (instead("leased 1 b 1 20", "leased 1 b 1 9"), "started before the one ahead"),
        (instead("leased 1 b 1 20", "leased 1 b 1 12"), "started before the one ahead"),
        ([*without("done 0 0.2 a 13"), "done 0 0.2 z 9"], "started before the one ahead"),
    ],
)
def test_should_see_what_must_not_be(lines: list[str], violation: str | None, tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text("\n".join(lines) + "\n")
    verdict = Verdict()
    judge(verdict, read_logs(tmp_path), Plan(2, in_order=True), set(), disturbed=0)
    if violation is None:
        assert verdict.violations == []
    else:
        assert any(violation in text for text in verdict.violations), verdict
