"""Fixtures of the tests of decoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decode.decode_support import Batches


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(tmp_path / "store")
