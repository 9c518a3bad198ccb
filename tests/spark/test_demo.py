"""`buffer-delta demo`, whole: producers, a loader that is killed with -9, another one, and the count."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from buffer_delta.delta.txn import Txn
from tests.nets import HANGS_S


@pytest.mark.thorough
def test_should_have_every_event_exactly_once_after_a_kill_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    command = [
        *(Path(sys.executable).with_name("buffer-delta"), "demo", "--folder", tmp_path / "demo"),
        *("--events", "1000", "--seconds", "5", "--json", "--serve", "127.0.0.1:0"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        try:
            printed = demo.stdout.readline()
            assert printed, demo.stderr.read()
            page = re.search(r"http://127\.0\.0\.1:\d+/", next(line for line in demo.stderr if "status page" in line))
            assert page, "it ends with the page's address"
            with urllib.request.urlopen(f"{page[0]}healthz", timeout=HANGS_S) as answer:
                assert json.load(answer)["state"] == "idle", "and stays up"
            demo.send_signal(signal.SIGINT)
            assert demo.wait(HANGS_S) == 0
        finally:
            demo.kill()
    result = json.loads(printed)
    assert (result["produced"], result["loaded"], result["duplicates"], result["missing"]) == (3000, 3000, 0, 0)
    notes = [txn for commit in reversed(result["history"]) if (txn := Txn.from_note(commit["userMetadata"]))]
    assert [note.epoch for note in notes[:2]] == [1, 1]
    assert {note.epoch for note in notes[2:]} == {2}
    firsts, lasts = [note.first for note in notes], [note.last for note in notes]
    assert firsts == [0, *(last + 1 for last in lasts[:-1])]
    assert len(result["rows"]) == 5
    assert result["start_up_seconds"] > 0
    assert result["rows_per_second"] > 0
    queue = read_manifest(open_store(str(tmp_path / "demo/queue")), "ingest/manifest")
    assert (len(queue), queue.next_sequence) == (0, lasts[-1] + 1)
