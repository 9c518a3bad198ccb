"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_support import InProcess, fill


@pytest.fixture
def buffer(capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capfd)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue of three batches."""
    folder = tmp_path / "queue"
    fill(folder, [b"one", b"two"], [b"three"], [b"four", "fünf".encode(), b"\xff\x00"], metadata=b"m")
    return folder
