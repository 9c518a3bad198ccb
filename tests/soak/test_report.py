"""Whatever fails on the way, the soak tells all that it knows, and that it failed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.soak import __main__ as soak
from tests.soak.lane import Lane


def _nothing(*_anything: object) -> None:
    """Neither Spark nor producers: it is about the end."""


def _fails(*_anything: object) -> None:
    raise EOFError("it ended before it said anything")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(soak, "DRAIN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(Lane, "start_loader", _nothing)
    monkeypatch.setattr(Lane, "waiting", lambda _: 1)
    monkeypatch.setattr(soak.Soak, "_start", _nothing)
    monkeypatch.setattr(soak.Soak, "_load", _nothing)


@pytest.mark.parametrize(("broken", "violation"), [("_start", "the start: "), ("_load", "the load: ")])
def test_should_report_in_any_case(
    broken: str, violation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak.Soak, broken, _fails)
    assert soak.main(["--minutes", "0.01", "--seed", "1"]) == 1
    told = capsys.readouterr().out
    for lane in ("s3", "local"):
        assert f"VIOLATION {lane}: not drained" in told
        assert f"VIOLATION {lane}: nobody saw its lag" in told
        assert f"VIOLATION {lane}: 100 old orphans were not collected" in told
    assert f"VIOLATION {violation}" in told
    assert "growth is judged only" in told
    assert "violations\nFAILED" in told
