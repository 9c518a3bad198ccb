"""`buffer produce`: records in, durable batches out, and the truth about what could not be."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.cli import produce as produce_command
from buffer.cli.records import calls, read_length_prefixed, read_lines
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.consume.fetch import FetchHandle
from buffer.errors import AppendOutcomeUnknown, BufferQueueError, InvalidInput, StoreUnusable
from buffer.inspect.status import read_manifest
from buffer.ledger.plan import Ledger
from buffer.produce.producer import Producer
from buffer.store.local import LocalStore
from buffer.store.open import open_store
from tests.cli.cli_support import InProcess, Program, fill, program, small_disk
from tests.nets import wait_until


def records_in(folder: Path) -> list[bytes]:
    with Consumer.new(ConsumerConfig(store=str(folder), gc_enabled=False)) as consumer:
        found: list[bytes] = []
        while (batch := consumer.next_batch()) is not None:
            found += batch.entries
        return found


def prefixed(*records: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(record)) + record for record in records)


# Reading


def test_should_make_each_line_a_record(buffer: InProcess, tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"one\n\ntwo\r\nno newline at the end")
    second.write_bytes(b"\xff\xfe\nlast\n")
    ran = buffer("produce", "--store", tmp_path / "q", first, second)
    assert (ran.code, ran.err) == (0, "")  # no progress bar where nobody looks
    assert "6 entries in 1 batch" in ran.out
    assert records_in(tmp_path / "q") == [b"one", b"", b"two\r", b"no newline at the end", b"\xff\xfe", b"last"]


def test_should_leave_empty_lines_out_when_asked(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\none\n\n\n")
    ran = buffer("produce", "--store", tmp_path / "q", "--skip-empty", tmp_path / "a.txt")
    assert ran.code == 0
    assert "3 empty" in ran.out
    assert records_in(tmp_path / "q") == [b"one"]


def test_should_take_any_bytes_when_they_are_length_prefixed(buffer: InProcess, tmp_path: Path) -> None:
    records = [b"", b"\n\n", bytes(range(256)) * 100]
    (tmp_path / "a.bin").write_bytes(prefixed(*records))
    assert buffer("produce", "--store", tmp_path / "q", "--length-prefixed", tmp_path / "a.bin").code == 0
    assert records_in(tmp_path / "q") == records


def test_should_keep_what_came_before_a_record_that_is_cut_off(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(prefixed(b"whole") + prefixed(b"half")[:-1])
    ran = buffer("produce", "--store", tmp_path / "q", "--length-prefixed", tmp_path / "a.bin")
    assert ran.code == 2
    assert "in the middle of a record" in ran.err
    assert records_in(tmp_path / "q") == [b"whole"]


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


@given(st.data(), st.binary(max_size=60).map(lambda b: b.replace(b"\x00", b"\n")))
def test_should_split_lines_alike_however_the_input_is_chunked(data: st.DataObject, text: bytes) -> None:
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    chunks = data.draw(chunked(text))
    assert [record for records in read_lines(chunks, 1000) for record in records] == expected


@given(st.data(), st.lists(st.binary(max_size=20), max_size=8))
def test_should_split_prefixed_records_alike_however_chunked(data: st.DataObject, records: list[bytes]) -> None:
    chunks = data.draw(chunked(prefixed(*records)))
    assert [record for found in read_length_prefixed(chunks, 1000) for record in found] == records


def test_should_refuse_records_that_no_batch_could_hold() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 100

    with pytest.raises(InvalidInput, match="more than 1,000 bytes"):
        list(read_lines(endless(), 1000))
    with pytest.raises(InvalidInput, match="claims 4,294,967,295 bytes"):
        list(read_length_prefixed([b"\xff" * 4], 1000))


@given(st.lists(st.lists(st.binary(max_size=12)), max_size=4), st.integers(16, 40))
def test_should_cut_records_to_what_a_batch_may_hold(found: list[list[bytes]], max_batch_bytes: int) -> None:
    pieces = list(calls(found, max_batch_bytes))
    assert [record for piece in pieces for record in piece] == [record for records in found for record in records]
    assert all(sum(4 + len(record) for record in piece) <= max_batch_bytes for piece in pieces)


@pytest.mark.parametrize(
    "text", [b"a\n" * 3000, b"first\n" + b"x" * 996 + b"\nlast\n"], ids=["short lines", "a long line"]
)
def test_should_produce_what_fits_into_batches_however_small_they_are(
    buffer: InProcess, tmp_path: Path, text: bytes
) -> None:
    """Short lines take more in a batch than in a file, and a long one comes in one piece with its neighbours."""
    (tmp_path / "a.txt").write_bytes(text)
    ran = buffer("produce", "--store", tmp_path / "q", "--set", "max_batch_bytes=1000", tmp_path / "a.txt")
    assert (ran.code, ran.err) == (0, "")
    assert records_in(tmp_path / "q") == text.splitlines()


def test_should_name_a_record_that_fits_into_no_batch(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\n" + b"x" * 997 + b"\nlast\n")
    ran = buffer("produce", "--store", tmp_path / "q", "--set", "max_batch_bytes=1000", tmp_path / "a.txt")
    assert ran.code == 2
    assert "a record of 997 bytes takes 1,001 in a batch, and max_batch_bytes is 1,000" in ran.err
    assert "go on        at record 1," in ran.out
    assert records_in(tmp_path / "q") == [b"first"]


# Options


def test_should_write_what_the_options_say(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 100_000 + b"\n")
    (tmp_path / "c.toml").write_text('[producer]\ncompression = "none"\ndata_path_prefix = "data"\n')
    ran = buffer(
        *("produce", "--store", tmp_path / "q", "--config", tmp_path / "c.toml", "--compression", "zstd"),
        *("--metadata", "from a test", "--manifest", "queues/a", "--set", "upload_concurrency=1"),
        tmp_path / "a.txt",
    )
    assert ran.code == 0
    (entry,) = read_manifest(open_store(str(tmp_path / "q")), "queues/a")
    assert entry.location.startswith("data/")
    assert entry.metadata[0].payload == b"from a test"
    assert (tmp_path / "q" / entry.location).stat().st_size < 1000


def test_should_keep_the_bytes_of_metadata_that_are_no_text(tmp_path: Path) -> None:
    ran = program("produce", "--store", tmp_path, "--metadata", os.fsdecode(b"a\xff"), stdin=b"one\n")
    assert (ran.code, ran.err) == (0, "")
    (entry,) = read_manifest(open_store(str(tmp_path)), "ingest/manifest")
    assert entry.metadata[0].payload == b"a\xff"


def test_should_have_stable_keys_in_the_json_summary(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    summary = buffer("produce", "--store", tmp_path / "q", "--json", tmp_path / "a.txt").json()
    assert summary.pop("seconds") > 0
    assert summary == {
        "entries": 2,
        "batches": 1,
        "bytes": 6,
        "skipped_empty": 0,
        "first_sequence": 0,
        "last_sequence": 0,
        "failed_entries": 0,
        "first_failed_entry": None,
        "missing": [],
        "unknown": [],
        "resume_at": None,
        "error": None,
    }


def test_should_keep_the_order_over_many_batches(buffer: InProcess, tmp_path: Path) -> None:
    lines = [str(number).encode() for number in range(100_000)]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    ran = buffer("produce", "--store", tmp_path / "q", "--flush-size-bytes", 65536, "--json", tmp_path / "a.txt")
    assert ran.json()["batches"] > 5
    assert records_in(tmp_path / "q") == lines


# Streams and signals


def test_should_say_so_when_there_is_no_input_at_all(tmp_path: Path) -> None:
    with Program("produce", "--store", tmp_path / "q", preexec_fn=lambda: os.close(0)) as produce:
        ran = produce.finish()
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: stdin is closed")
    assert ran.err.count("\n") == 1


def test_should_not_wait_for_the_end_of_a_slow_stream(tmp_path: Path) -> None:
    with Program("produce", "--store", tmp_path, "--flush-interval-ms", 10) as produce:
        produce.write(b"now\nhalf a li")
        wait_until((tmp_path / "ingest/manifest").exists, "for the first line, while the stream is open")
        ran = produce.finish(b"ne\n")
    assert ran.code == 0
    assert "2 entries in 2 batches" in ran.out
    assert records_in(tmp_path) == [b"now", b"half a line"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_should_flush_what_was_read_when_told_to_stop(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with Program("produce", "--store", tmp_path, "--flush-interval-ms", 60_000, "--debug") as produce:
        produce.write(b"one\ntwo\nhalf")
        wait_until_read(produce)
        produce.signal(number)
        ran = produce.finish()
    assert ran.code == code
    assert "2 entries in 1 batch" in ran.out
    assert "Traceback" not in ran.err
    assert records_in(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_should_tell_what_is_durable_when_told_to_stop_while_it_flushes(
    buffer: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """Everything was read, and nothing said yet: whoever hears no word begins again."""
    close = produce_command._close

    def told_to_stop(producer: Producer) -> None:
        signal.raise_signal(number)
        close(producer)

    monkeypatch.setattr(produce_command, "_close", told_to_stop)
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    ran = buffer("produce", "--store", tmp_path / "q", tmp_path / "a.txt")
    assert ran.code == code
    assert "2 entries in 1 batch" in ran.out
    assert records_in(tmp_path / "q") == [b"one", b"two"]


def test_should_stop_while_a_named_pipe_has_no_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fill(tmp_path / "q", [b"one"])
    (tmp_path / "two.txt").write_bytes(b"two\n")
    with Program("produce", "--store", tmp_path / "q", tmp_path / "two.txt", tmp_path / "pipe") as produce:
        # It has read the first file; by then, or in a moment, it waits for the second.
        wait_until(lambda: len(read_manifest(open_store(str(tmp_path / "q")), "ingest/manifest")) == 2)
        produce.signal(signal.SIGINT)
        ran = produce.finish()
    assert (ran.code, ran.err) == (130, "")
    assert records_in(tmp_path / "q") == [b"one", b"two"]


def wait_until_read(program: Program) -> None:
    """The pipe is empty: what was written is the program's now, and so are its signals."""
    waiting = bytearray(4)
    wait_until(lambda: not fcntl.ioctl(program.stdin, termios.FIONREAD, waiting) and not any(waiting))


# Failures


@pytest.mark.parametrize("bad", [{1}, {2}, {5}, {2, 3}, {2, 5}, {1, 3, 6}, {6}, {4, 5, 6}], ids=str)
@pytest.mark.parametrize("error", [StoreUnusable, AppendOutcomeUnknown], ids=lambda error: error.__name__)
def test_should_tell_how_to_go_on_so_that_every_record_is_there_once(
    buffer: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: set[int], error: type[BufferQueueError]
) -> None:
    """Batches behind a failed one are durable: going on at the first failed record would double them."""
    lines = [b"record-%02d" % number for number in range(6)]
    (tmp_path / "a.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    put, uploads = LocalStore.put, count(1)
    others, all_uploaded = count(1), threading.Event()
    good = len(lines) - len(bad)

    def fails(store: LocalStore, location: str, data: bytes) -> None:
        if not location.endswith(".batch"):
            put(store, location, data)
        elif next(uploads) in bad:
            all_uploaded.wait()  # so that all of the input is read, and the good ones uploaded, before it is known
            raise error("no luck", **({"retryable": False} if error is StoreUnusable else {}))
        else:
            put(store, location, data)
            if next(others) == good:
                all_uploaded.set()

    monkeypatch.setattr(LocalStore, "put", fails)
    ran = buffer(
        *("produce", "--store", tmp_path / "q", "--json", "--set", "upload_concurrency=6"),
        *("--flush-size-bytes", 1, tmp_path / "a.txt"),  # a batch for each record
    )
    assert ran.code == 1
    told = ran.json()
    queued = records_in(tmp_path / "q") if good else []
    places = [place for first, last in told["missing"] for place in range(first, last + 1)]
    places += range(len(lines) if told["resume_at"] is None else told["resume_at"], len(lines))
    unknown = [place for first, last in told["unknown"] for place in range(first, last + 1)]
    assert sorted([*queued, *(lines[place] for place in (*places, *unknown))]) == lines
    assert told["failed_entries"] == len(bad)
    assert bool(unknown) == (error is AppendOutcomeUnknown)
    assert set(places).isdisjoint(unknown)


def test_should_fail_when_nothing_can_be_made_durable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ran = program("produce", "--store", tmp_path / "file", stdin=b"one\ntwo\n")
    assert ran.code == 1
    assert "0 entries in 0 batches" in ran.out
    assert ran.out.splitlines()[-2:] == ["not durable  2 entries", "go on        at record 0, counted from 0"]
    assert "is not a folder" in ran.err
    assert "Traceback" not in ran.err


def test_should_end_with_5_when_the_manifest_is_lost(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    ledger = Ledger(queue_id="01Q", app_id="buffer/01Q", tables=("events",), born=True, epoch=1, next_sequence=3)
    open_store(str(tmp_path)).put("ingest/manifest.ledger", ledger.to_bytes())
    ran = buffer("produce", "--store", tmp_path, tmp_path / "a.txt")
    assert ran.code == buffer("status", "--store", tmp_path).code == 5
    assert "0 entries in 0 batches" in ran.out
    assert ran.err.startswith("error: the manifest 'ingest/manifest' is missing")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("flush_size_bytes", [1, 2, 3, 5, 8])
def test_should_count_left_out_records_in_the_place_to_go_on(
    buffer: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_size_bytes: int
) -> None:
    lines = [b"", b"", b"a", b"", b"b", b"", b"", b"", b"c", b"d", b"", b"e", b""]
    (tmp_path / "a.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    put, uploads = LocalStore.put, count(1)

    def put_twice(store: LocalStore, location: str, data: bytes) -> None:
        if next(uploads) > 2:
            raise StoreUnusable("the disk is full", location=location, retryable=False)
        put(store, location, data)

    monkeypatch.setattr(LocalStore, "put", put_twice)
    ran = buffer(
        *("produce", "--store", tmp_path / "q", "--skip-empty", "--json", "--set", "upload_concurrency=1"),
        *("--flush-size-bytes", flush_size_bytes, tmp_path / "a.txt"),
    )
    assert ran.code == 1
    place = ran.json()["first_failed_entry"]
    assert lines[place] != b""
    assert records_in(tmp_path / "q") == [line for line in lines[:place] if line]


def test_should_say_what_is_wrong_with_a_read_only_folder() -> None:
    ran = program("produce", "--store", "/sys/kernel/buffer-test", stdin=b"one\n")  # read-only, even for root
    assert ran.code == 1
    assert ran.err.startswith("error: ")
    assert "/sys/kernel/buffer-test" in ran.err
    assert "Traceback" not in ran.err


def test_should_tell_how_far_it_came_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as limit:
        produce_until_full(tmp_path / "disk", limit)


def produce_until_full(folder: Path, limit: Callable[[], None]) -> None:
    lines = b"x" * 99 + b"\n"
    with Program(
        *("produce", "--store", folder, "--flush-size-bytes", 30_000, "--set", "max_buffered_bytes=60_000"),
        *("--set", "upload_concurrency=1", "--json"),
        preexec_fn=limit,
    ) as produce:
        ran = produce.finish(lines * 250 + b"y" * 50_000 + b"\n" + lines * 5000)
    assert ran.code == 1
    assert "No space left on device" in ran.err or "File too large" in ran.err
    assert "Traceback" not in ran.err
    assert ran.json()["error"] in ran.err
    assert ran.json()["entries"] == len(records_after(folder))


def records_after(folder: Path) -> list[bytes]:
    """What the queue refers to, without writing: the disk is full."""
    store = open_store(str(folder))
    handle = FetchHandle(store)
    return [e for entry in read_manifest(store, "ingest/manifest") for e in handle.fetch(entry).entries]
