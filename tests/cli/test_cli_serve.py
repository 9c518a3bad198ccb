"""`buffer-delta serve`: what its options make of the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buffer.testing import ManualClock
from buffer_delta.cli import serve as command
from buffer_delta.cli.app import cli
from buffer_delta.serve.server import StatusServer
from tests.cli.cli_support import InProcess, fill


def test_should_not_call_a_store_silent_between_two_looks_that_are_far_apart(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = ManualClock()
    seen: list[str] = []

    class Served(StatusServer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options, clock=clock)

        def start(self, look_s: float = 0.0) -> None:
            self.watch.look()
            for seconds in (look_s, 59, 2):
                clock.advance(seconds)
                seen.append(self.status().state)
            self.close()
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "StatusServer", Served)
    fill(tmp_path, [b"a"])
    InProcess(capfd, cli, "buffer-delta")("serve", "--store", tmp_path, "--serve", "127.0.0.1:0", "--every", 300)
    assert seen == ["waiting", "waiting", "unreachable"]


@pytest.mark.parametrize(
    "address", ["s3://AKIA-hidden:hush@b", "AKIA-hidden:hush@..b:1", "secret_access_key=hush..x:1"], ids=ascii
)
def test_should_not_repeat_a_key_that_stands_for_an_address(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, address: str
) -> None:
    ran = InProcess(capfd, cli, "buffer-delta")("serve", "--store", tmp_path, "--serve", address)
    assert ran.code == 2
    assert "hush" not in ran.err
    assert ran.err.startswith("error: ")
