"""Logs for machines: with --log-format json every line on stderr is one JSON document."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from buffer.cli.logs import StderrHandler
from buffer.cli.shell import Session
from tests.cli.cli_support import InProcess


def test_should_report_an_error_as_one_json_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = InProcess(capfd)
    done = run("status", "--store", tmp_path / "none", "--log-format", "json")
    assert done.code == 1
    (line,) = done.err.splitlines()
    said = json.loads(line)
    assert (said["level"], said["event"], said["error"], said["exit_code"]) == ("error", "error", "ObjectNotFound", 1)
    assert "there is no queue yet" in said["message"]
    assert "traceback" not in said
    debugged = run("status", "--store", tmp_path / "none", "--log-format", "json", "--debug")
    assert "Traceback" in json.loads(debugged.err.splitlines()[-1])["traceback"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_should_not_log_a_key_that_somebody_repeats(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("buffer.test")
    logger.addHandler(StderrHandler(Session(log_format=log_format)))  # type: ignore[arg-type]
    logger.warning("the range failed: HEAD https://AKIA-hidden:hush@host/q, https://a.host/q?sv=2026&sig=hush&x=1, 403")
    said = capsys.readouterr().err
    assert "https://a.host/q?sv=2026&sig=…&x=1, 403" in said
    assert "hush" not in said


def test_should_keep_hostile_text_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(log_format="json")
    logger = logging.Logger("buffer.test")
    logger.addHandler(StderrHandler(session))
    logger.warning('a\n{"level": "info"}\u2028\x1b[2J', extra={"event": "x", "facts": {"level": "forged", "n": 1}})
    (line,) = capsys.readouterr().err.split("\n")[:-1]
    said = json.loads(line)
    assert (said["level"], said["event"], said["n"]) == ("warning", "x", 1)
    assert said["message"].startswith('a\n{"level"')
    assert "\x1b" not in line


def test_should_always_show_events_in_json_and_by_level_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    for form, shown in (("json", 1), ("text", 0)):
        logger = logging.Logger("buffer.test")
        logger.addHandler(StderrHandler(Session(log_format=form)))  # type: ignore[arg-type]
        logger.info("committed", extra={"event": "commit", "facts": {"rows": 3}})
        logger.info("not shown without -v")
        assert len(capsys.readouterr().err.splitlines()) == shown
