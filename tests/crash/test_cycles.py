"""The command that runs the crash cycles, in small. The whole of it: `python -m tests.crash`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.crash import producer_cycles
from tests.crash.__main__ import main
from tests.crash.verdict import Verdict


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_should_lose_nothing_when_producers_are_killed_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--producer-cycles", "20"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "20 killed" in said
    assert "nothing lost, nothing twice" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.xdist_group("pair, loader")  # with the others that start loaders: two cores are not enough for more
def test_should_lose_nothing_when_loaders_and_their_collectors_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--loader-cycles", "2"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "2 loaders died" in said
    assert "to 3 tables" in said
    assert "nothing lost, nothing twice" in said
    assert list(tmp_path.iterdir()) == []


def test_should_fail_and_keep_the_folder_when_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(producer_cycles, "judge", lambda *_: Verdict(durable=9, violations=["p1: lost: [3]"]))
    assert main(["--producer-cycles", "1", "--seed", "7"]) == 1
    said = capsys.readouterr().out
    assert "VIOLATION p1: lost: [3]" in said
    assert "FAILED with seed 7" in said
    assert list(tmp_path.glob("*/producers/logs/*.log"))
