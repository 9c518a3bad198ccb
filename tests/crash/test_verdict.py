"""The judge must find every kind of wrong: a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.verdict import Verdict, judge

LOG = "D 0 4\nF 5 6\nR 5 6\nD 5 6\nU 7 7\nF 8 8\nR 9 9\nD 10 1"  # the last line was cut by a kill


def _judge(tmp_path: Path, *ids: int, log: str = LOG) -> Verdict:
    (tmp_path / "p.log").write_text(log)
    return judge([tmp_path / "p.log"], {"p": ids})


@pytest.mark.parametrize("unsure", [(), (7,), (9, 10), (7, 9, 10, 11)])
def test_should_accept_what_is_durable_and_any_of_what_nobody_knows(tmp_path: Path, unsure: Sequence[int]) -> None:
    verdict = _judge(tmp_path, 0, 1, 2, 3, 4, *unsure, 5, 6)
    assert verdict.violations == []
    assert (verdict.durable, verdict.unknown, verdict.retried) == (7, 1, 2)
    assert verdict.in_flight == len(set(unsure) - {7})


@pytest.mark.parametrize(
    ("ids", "violation"),
    [
        ((0, 1, 2, 4, 5, 6), "durable and lost: [3]"),
        ((0, 1, 2, 3, 4, 5, 6, 2), "more than once: [2]"),
        ((0, 1, 2, 3, 4, 5, 6, 7, 7), "more than once: [7]"),
        ((0, 1, 2, 3, 4, 5, 6, 8), "surely failed, but there: [8]"),
        ((0, 2, 1, 3, 4, 5, 6), "out of order: [1]"),
    ],
)
def test_should_name_what_is_wrong(tmp_path: Path, ids: Sequence[int], violation: str) -> None:
    (found,) = _judge(tmp_path, *ids).violations
    assert violation in found


def test_should_report_unforeseen_errors_and_strangers(tmp_path: Path) -> None:
    verdict = _judge(tmp_path, log="X 0 1 ManifestLost('gone')\n")
    assert verdict.violations == ["p: X 0 1 ManifestLost('gone')"]
    assert judge([], {"q": [1]}).violations == ["entries of 'q', who never produced: [1]"]
