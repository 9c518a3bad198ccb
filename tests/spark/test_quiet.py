"""What a person sees of a corrupt batch: one line that says where to look, no Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from buffer.manifest import Manifest
from tests.spark.queues import numbered, produce

pytestmark = pytest.mark.spark


def test_should_tell_of_a_corrupt_batch_in_one_line(tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(3))
    batches = list(Manifest.from_bytes((tmp_path / "queue/ingest/manifest").read_bytes()))
    (tmp_path / "queue" / batches[1].location).write_bytes(b"damaged")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "buffer_delta", "load", "--available-now", "--master", "local[1]"),
            *("--store", str(tmp_path / "queue"), "--table", str(tmp_path / "table"), "--format", "text"),
            *("--dead-letters", str(tmp_path / "dead"), "--set", "retry_max_s=0.01", "--set", "gc_enabled=false"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    usual = ("WARNING: Using incubator modules", "starting Spark", "Spark is up", "hint: ")
    said = [line for line in ran.stderr.splitlines() if not line.startswith(usual)]
    assert len(said) == 1, "\n".join(said)
    assert said[0].startswith("warning: setting aside (see `buffer-delta dead-letters list`): batch 1: ")
