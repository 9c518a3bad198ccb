"""`buffer-delta demo`, whole: producers, a loader that is killed with -9, another one, and the count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from buffer_delta.delta.txn import Txn

DEMO_TIMEOUT_S = 280


def test_should_have_every_event_exactly_once_after_a_kill_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("buffer-delta"), "demo", "--folder", tmp_path / "demo"),
            *("--events", "1000", "--seconds", "5", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["produced"], result["loaded"], result["duplicates"], result["missing"]) == (3000, 3000, 0, 0)
    notes = [txn for commit in reversed(result["history"]) if (txn := Txn.from_note(commit["userMetadata"]))]
    assert [note.epoch for note in notes[:2]] == [1, 1]
    assert {note.epoch for note in notes[2:]} == {2}
    firsts, lasts = [note.first for note in notes], [note.last for note in notes]
    assert firsts == [0, *(last + 1 for last in lasts[:-1])]
    assert len(result["rows"]) == 5
    queue = read_manifest(open_store(str(tmp_path / "demo/queue")), "ingest/manifest")
    assert (len(queue), queue.next_sequence) == (0, lasts[-1] + 1)
