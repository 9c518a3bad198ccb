"""`buffer tail` and `buffer gc`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buffer.cli.interrupts import InterruptibleClock
from buffer.clock import make_ulid
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.consume.fetch import FetchHandle
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, ConsumedBatch
from tests.cli.cli_support import InProcess, Program, fill
from tests.nets import HANGS_S

# tail


def test_should_print_the_last_records_over_several_batches(buffer: InProcess, queue: Path) -> None:
    fill(queue, [b"seven"])
    assert buffer("tail", "--store", queue, "-n", 1).out == "seven\n"
    assert buffer("tail", "--store", queue, "--from", 3).out == "seven\n"
    assert buffer("tail", "--store", queue, "-n", 0).out == ""


def test_should_print_everything_from_a_sequence_on(buffer: InProcess, queue: Path) -> None:
    ran = buffer("tail", "--store", queue, "--from", 0, "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    places = [(line["sequence"], line["index"]) for line in lines]
    assert places == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert [line["value"] for line in lines] == ["one", "two", "three", "four", "fünf", None]
    assert lines[-1]["value_base64"] == "/wA="
    assert {line["metadata_base64"] for line in lines} == {"bQ=="}
    assert list(lines[0]) == [
        *("sequence", "index", "location", "ingestion_time_ms", "metadata_base64", "value", "value_base64")
    ]


def test_should_take_records_from_as_many_batches_as_it_needs(buffer: InProcess, queue: Path) -> None:
    out = buffer("tail", "--store", queue, "-n", 5, "--json").out
    assert [json.loads(line)["value"] for line in out.splitlines()] == ["two", "three", "four", "fünf", None]


def test_should_go_through_a_long_manifest_once_for_many_batches(
    buffer: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, *([b"%d" % n] for n in range(100)))
    walks: list[int] = []

    def counted(manifest: Manifest, sequence: int) -> Iterator[BatchDescriptor]:
        walks.append(sequence)
        return entries_from(manifest, sequence)

    entries_from = Manifest.entries_from
    monkeypatch.setattr(Manifest, "entries_from", counted)
    assert buffer("tail", "--store", tmp_path, "-n", 95).out.split() == [str(n) for n in range(5, 100)]
    assert walks == [99, 97, 93, 85, 69, 37, 0]


def test_should_claim_and_ack_nothing(buffer: InProcess, queue: Path) -> None:
    before = (queue / "ingest/manifest").read_bytes()
    assert buffer("tail", "--store", queue).code == 0
    assert (queue / "ingest/manifest").read_bytes() == before


def test_should_go_on_when_a_batch_is_gone(buffer: InProcess, queue: Path) -> None:
    location = buffer("manifest", "dump", "--store", queue).json()["entries"][1]["location"]
    (queue / location).unlink()
    ran = buffer("tail", "--store", queue, "--from", 0)
    assert ran.out.startswith("one\ntwo\nfour\n")
    assert "batch 1 is gone" in ran.err
    assert ran.code == 1


def test_should_go_on_when_a_batch_is_corrupt(buffer: InProcess, queue: Path) -> None:
    location = buffer("manifest", "dump", "--store", queue).json()["entries"][1]["location"]
    (queue / location).write_bytes(b"not a batch at all")
    ran = buffer("tail", "--store", queue, "--from", 0)
    assert ran.out.startswith("one\ntwo\nfour\n")
    assert f"warning: batch 1 is corrupt: '{location}'" in ran.err
    assert ran.code == 1
    newest = buffer("tail", "--store", queue, "-n", 4)
    assert newest.out.startswith("two\nfour\n")
    assert newest.code == 1
    assert buffer("tail", "--store", queue, "-n", 3).code == 0, "the bad one was not asked for"


def test_should_not_fail_for_a_batch_that_was_acked_meanwhile(
    buffer: InProcess, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = FetchHandle.fetch

    def ack_first(handle: FetchHandle, descriptor: BatchDescriptor) -> ConsumedBatch:
        if descriptor.sequence == 0:
            with Consumer.new(ConsumerConfig(store=str(queue), gc_enabled=False)) as consumer:
                consumer.next_descriptors(1)
                consumer.ack_through(0)
            (queue / descriptor.location).unlink()
        return fetch(handle, descriptor)

    monkeypatch.setattr(FetchHandle, "fetch", ack_first)
    ran = buffer("tail", "--store", queue, "--from", 0)
    assert "batch 0 is gone" in ran.err
    assert ran.code == 0


def test_should_follow_what_comes_and_say_what_it_missed(tmp_path: Path) -> None:
    with Program("tail", "--store", tmp_path, "-f", "--interval-s", 0.001) as tail:
        waits = f"there is no queue yet: {tmp_path.as_uri()} has no manifest 'ingest/manifest'; waiting for it\n"
        assert tail.stderr.readline() == waits.encode()
        # Making the first batch takes it several looks more, which say nothing.
        fill(tmp_path, [b"one"])
        assert tail.stdout.readline() == b"one\n"
        tail.signal(signal.SIGSTOP)  # meanwhile a loader takes away what this reader has not seen
        fill(tmp_path, [b"two"], [b"three"])
        with Consumer.new(ConsumerConfig(store=str(tmp_path), gc_enabled=False)) as consumer:
            consumer.next_descriptors(2)
            consumer.ack_through(1)
        tail.signal(signal.SIGCONT)
        assert tail.stdout.readline() == b"three\n"
        assert b"batches 1..1 were acked before they could be shown" in tail.stderr.readline()
        tail.signal(signal.SIGINT)
        assert tail.wait() == 130
        assert tail.stderr.read() == b""


def test_should_not_let_records_drive_the_terminal(tmp_path: Path) -> None:
    fill(tmp_path, [b"\x1b[31mred\tbell\x07"])
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [Path(sys.executable).with_name("buffer"), "tail", "--store", tmp_path],
        stdout=theirs,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        shown = os.read(ours, 1000)
        assert process.wait(HANGS_S) == 0
    os.close(ours)
    assert shown.replace(b"\r\n", b"\n") == b"\\x1b[31mred\tbell\\x07\n"


# gc


HOUR_MS = 3600 * 1000


def put_orphan(folder: Path, age_ms: int, letter: bytes = b"a") -> Path:
    """A batch object that no entry refers to."""
    orphan = folder / "ingest" / f"{make_ulid(int(time.time() * 1000) - age_ms, letter * 10)}.batch"
    orphan.write_bytes(b"left behind")
    return orphan


def test_should_only_list_in_a_dry_run(buffer: InProcess, queue: Path) -> None:
    orphan = put_orphan(queue, 48 * HOUR_MS)
    ran = buffer("gc", "--store", queue, "--dry-run", "--json")
    assert ran.code == 0
    assert ran.json()["waiting"] == [f"ingest/{orphan.name}"]
    said = buffer("gc", "--store", queue, "--dry-run")
    assert "1 of 4 batches would go" in said.err
    assert said.out == f"ingest/{orphan.name}\n"
    assert orphan.exists()


def test_should_tell_why_batches_stay_in_a_dry_run(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "ingest").mkdir()
    gone, named, newer = (put_orphan(tmp_path, age * HOUR_MS) for age in (48, 3, 2))
    put_orphan(tmp_path, 0)
    (tmp_path / "ingest/manifest").write_bytes(Manifest.empty().append(f"ingest/{named.name}").to_bytes())
    found = buffer("gc", "--store", tmp_path, "--dry-run", "--json").json()
    assert found["waiting"] == [f"ingest/{gone.name}"]
    assert found["kept"] == {
        "in_queue": 1,
        "too_young": 1,
        "not_older_than_queue": 1,
        "queue_undated": 0,
        "later_cycle": 0,
        "second_look": 1,
    }
    assert sum(found["kept"].values()) == found["listed"] == 4
    said = buffer("gc", "--store", tmp_path, "--dry-run").err
    assert "1 of 4 batches would go after a second look" in said
    assert "1 stays: in the queue" in said
    assert "1 stays: younger than the grace period, 600 s" in said
    assert "1 stays: in no entry, but not older than the oldest batch in the queue" in said
    assert len(said.splitlines()) == 4
    assert newer.exists()


def test_should_tell_that_a_name_without_a_time_keeps_everything(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "ingest").mkdir()
    put_orphan(tmp_path, 48 * HOUR_MS)
    (tmp_path / "ingest/manifest").write_bytes(Manifest.empty().append("ingest/by-hand.batch").to_bytes())
    assert buffer("gc", "--store", tmp_path, "--dry-run", "--json").json()["kept"]["queue_undated"] == 1
    assert "1 stays: in no entry, but the queue has a batch whose name tells no time" in (
        buffer("gc", "--store", tmp_path, "--dry-run").err
    )


def test_should_delete_what_is_a_day_old_in_two_looks_at_once(buffer: InProcess, queue: Path) -> None:
    orphan = put_orphan(queue, 48 * HOUR_MS)
    ran = buffer("gc", "--store", queue, "--wait-s", 0, "--json")
    assert ran.json()["deleted"] == [f"ingest/{orphan.name}"]
    assert not orphan.exists()
    assert buffer("verify", "--store", queue).code == 0


def test_should_keep_what_is_younger_while_the_queue_stands_still(buffer: InProcess, queue: Path) -> None:
    orphan = put_orphan(queue, HOUR_MS)
    ran = buffer("gc", "--store", queue, "--wait-s", 0.1)
    assert ran.code == 0
    assert "0 of 4 batches deleted; 1 more wait for another look" in ran.err
    assert orphan.exists()


def test_should_delete_it_once_the_queue_has_moved(
    buffer: InProcess, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = put_orphan(queue, HOUR_MS)
    waits = 0

    def sleep(_clock: InterruptibleClock, _seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            fill(queue, [b"more"])

    monkeypatch.setattr(InterruptibleClock, "sleep", sleep)
    ran = buffer("gc", "--store", queue, "--wait-s", HANGS_S)
    assert (ran.code, waits) == (0, 2)
    assert not orphan.exists()
    assert "1 of 5 batches deleted" in ran.err


def test_should_delete_nothing_where_there_is_no_manifest(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "ingest").mkdir()
    orphan = put_orphan(tmp_path, 48 * HOUR_MS)
    ran = buffer("gc", "--store", tmp_path)
    assert ran.code == 1
    assert "there is no queue yet" in ran.err
    assert orphan.exists()


def test_should_go_on_for_ever_when_asked(queue: Path) -> None:
    with Program("gc", "--store", queue, "--every", 0.05, "--json") as gc:
        looks = [json.loads(gc.stdout.readline()) for _ in range(3)]
        assert [look["listed"] for look in looks] == [3, 3, 3]
        gc.signal(signal.SIGINT)
        assert gc.wait() == 130
