"""`buffer produce --client-id --from` and `buffer clients`: resume after any end, and what operators can do."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from buffer.clients import ClientGuard
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.manifest import Manifest
from buffer.produce.producer import Producer
from buffer.queue import QueueConsumer
from buffer.store.open import open_store
from tests.cli.cli_support import InProcess, Program, program
from tests.produce.producer_support import entries_of
from tests.users import as_nobody

MANIFEST = "ingest/manifest"


def lines(count: int, first: int = 0) -> bytes:
    return b"".join(b"line %d\n" % n for n in range(first, first + count))


def queued(folder: Path) -> list[bytes]:
    return entries_of(open_store(folder))


def drain(folder: Path, *, keep_marks: bool = True) -> None:
    if keep_marks:
        with Consumer.new(ConsumerConfig(store=str(folder), gc_enabled=False)) as consumer:
            while (batch := consumer.next_batch()) is not None:
                consumer.ack_through(batch.sequence)
        return
    queue = QueueConsumer(open_store(folder), MANIFEST, SystemClock())
    manifest = queue.claim()
    queue.dequeue(manifest.next_sequence - 1)


def test_should_produce_a_file_once_however_often_it_is_run(buffer: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(lines(5))
    command = ("produce", "--store", tmp_path / "q", "--client-id", "a", "--from", file)
    assert "5 entries" in buffer(*command).out
    again = buffer(*command)
    assert (again.code, again.err) == (0, "")
    assert "0 entries" in again.out
    drain(tmp_path / "q")
    with file.open("ab") as more:
        more.write(lines(2, 5))
    assert "2 entries" in buffer(*command).out
    assert queued(tmp_path / "q") == [b"line 5", b"line 6"]


def test_should_count_each_file_of_a_folder_by_itself(buffer: InProcess, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_bytes(b"b0\nb1\n")
    (folder / "deep" / "c.txt").write_bytes(b"c0\n")
    (folder / ".hidden").write_bytes(b"no\n")
    command = ("produce", "--store", tmp_path / "q", "--client-id", "in", "--from", folder)
    assert buffer(*command).code == 0
    (folder / "a.txt").write_bytes(b"a0\n")  # sorts before what was produced
    (folder / "b.txt").unlink()
    (folder / "deep" / "c.txt").write_bytes(b"c0\nc1\n")
    assert buffer(*command).code == 0
    assert queued(tmp_path / "q") == [b"b0", b"b1", b"c0", b"a0", b"c1"]
    listed = json.loads(buffer("clients", "list", "--store", tmp_path / "q", "--json").out)
    assert {c["client_id"]: c["client_seq"] for c in listed["clients"]} == {
        "in/a.txt": 0,
        "in/b.txt": 1,
        "in/deep/c.txt": 1,
    }


@pytest.mark.parametrize(
    ("options", "pieces", "records"),
    [
        ((), (b"one\ntw", b"o\n", b"three"), [b"one", b"two"]),
        (("--length-prefixed",), (b"\3\0\0\0one\3\0", b"\0\0two\5", b"\0"), [b"one", b"two"]),
    ],
)
def test_should_leave_the_end_of_a_growing_file_to_a_later_run(
    buffer: InProcess, tmp_path: Path, options: tuple[str, ...], pieces: tuple[bytes, ...], records: list[bytes]
) -> None:
    command = ("produce", "--store", tmp_path / "q", "--client-id", "a", "--growing", *options)
    for piece in pieces:
        with (tmp_path / "log").open("ab") as file:
            file.write(piece)
        ran = buffer(*command, "--from", tmp_path / "log")
        assert (ran.code, ran.err) == (0, "")
    assert queued(tmp_path / "q") == records
    assert buffer("produce", "--store", tmp_path / "q", "--growing", tmp_path / "log").code == 2


def test_should_not_take_a_file_for_a_cut_one_whose_last_line_an_earlier_run_has_counted(
    buffer: InProcess, tmp_path: Path
) -> None:
    """The advice, another client id, would put all of its records into the queue again."""
    log = tmp_path / "log"
    command = ("produce", "--store", tmp_path / "q", "--client-id", "a", "--from", log)
    log.write_bytes(b"one\ntwo")
    assert buffer(*command).code == 0
    ran = buffer(*command, "--growing")
    assert (ran.code, ran.err) == (0, "")
    log.write_bytes(b"one\ntwo\nthree\n")
    assert buffer(*command, "--growing").code == 0
    assert queued(tmp_path / "q") == [b"one", b"two", b"three"]
    for cut in (b"one\ntwo\n", b"one\ntw", b""):
        log.write_bytes(cut)
        ran = buffer(*command, "--growing")
        assert (ran.code, "the file was cut or replaced" in ran.err) == (2, True), cut


def test_should_take_a_file_once_that_a_link_leads_to(buffer: InProcess, tmp_path: Path) -> None:
    """As beside logs, where `current` is the newest one."""
    folder = tmp_path / "in"
    (folder / "old").mkdir(parents=True)
    (folder / "b.log").write_bytes(b"b\n")
    (folder / "old/c.log").write_bytes(b"c\n")
    (tmp_path / "elsewhere.log").write_bytes(b"elsewhere\n")
    (folder / "a.log").symlink_to("b.log")
    (folder / "current.log").symlink_to(folder / "old/c.log")
    (folder / "x.log").symlink_to(tmp_path / "elsewhere.log")
    (folder / "y.log").symlink_to(tmp_path / "elsewhere.log")
    (folder / "gone.log").symlink_to(tmp_path / "gone.log")
    (folder / "round").symlink_to(folder)
    ran = buffer("produce", "--store", tmp_path / "q", "--client-id", "in", "--from", folder)
    assert (ran.code, ran.err) == (0, "")
    assert queued(tmp_path / "q") == [b"b", b"c", b"elsewhere"]
    found = json.loads(buffer("clients", "list", "--store", tmp_path / "q", "--json").out)["clients"]
    assert [client["client_id"] for client in found] == ["in/b.log", "in/old/c.log", "in/x.log"]


def test_should_not_leave_out_a_folder_that_it_may_not_read(buffer: InProcess, tmp_path: Path) -> None:
    """Its files would be missing, and the command would say that all is durable."""
    with as_nobody(), TemporaryDirectory() as folder:  # one that nobody may enter, unlike pytest's own
        closed = Path(folder, "closed")
        closed.mkdir()
        (closed / "a.txt").write_bytes(lines(2))
        Path(folder, ".hidden").mkdir(mode=0o000)  # nobody asked for this one
        closed.chmod(0o000)
        command = ("produce", "--store", f"{folder}/.q", "--client-id", "a", "--from", folder)
        ran = buffer(*command)
        closed.chmod(0o755)
        assert (ran.code, "2 entries" in buffer(*command).out) == (1, True)
        assert f"{closed}: Permission denied" in ran.err


def test_should_name_a_file_whose_path_cannot_be_a_clients_name(buffer: InProcess, tmp_path: Path) -> None:
    folder = tmp_path / "in" / ("d" * 200)
    folder.mkdir(parents=True)
    (tmp_path / "in/a.txt").write_bytes(lines(1))
    for name in (b"caf\xe9.txt", b"e" * 60):
        file = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
        file.write_bytes(lines(1))
        ran = buffer("produce", "--store", tmp_path / "q", "--client-id", "a", "--from", tmp_path / "in")
        assert ran.code == 2
        assert ascii(file.name)[1:-1] in ran.err
        assert "rename it" in ran.err
        file.unlink()
    assert not (tmp_path / "q").exists()  # said before anything is produced


def test_should_show_one_bar_over_all_files_of_a_folder(tmp_path: Path) -> None:
    """On a terminal: what is read of all there is, not of the file in hand."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_bytes(lines(100))
    total = 3 * len(lines(100))
    terminal, its_end = pty.openpty()
    command = [str(Path(sys.executable).with_name("buffer")), "produce", "--store", str(tmp_path / "q")]
    command += ["--client-id", "in", "--from", str(tmp_path / "in")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=its_end, env=environment) as process:
        os.close(its_end)
        drawn = b""
        with suppress(OSError):  # what a terminal says when nobody is at its other end
            while data := os.read(terminal, 1 << 16):
                drawn += data
        os.close(terminal)
    assert process.returncode == 0, drawn
    assert b"producing" in drawn
    shown = re.findall(rb"([\d.,]+)/([\d.,]+) (?:bytes|kB)", drawn)
    expected = f"{total / 1000:.1f}".encode() if total > 999 else b"%d" % total
    assert {of for _, of in shown} == {expected}, shown
    assert shown[-1] == (expected, expected)


def test_should_count_the_records_that_it_leaves_out(buffer: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\n\none\n\ntwo\n\n")
    command = ("produce", "--store", tmp_path / "q", "--client-id", "a", "--from", file, "--skip-empty")
    assert buffer(*command).code == 0
    with file.open("ab") as more:
        more.write(b"three\n")
    assert buffer(*command).code == 0
    assert queued(tmp_path / "q") == [b"one", b"two", b"three"]


def test_should_refuse_a_file_that_became_shorter(buffer: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(lines(3))
    command = ("produce", "--store", tmp_path / "q", "--client-id", "a", "--from", file)
    assert buffer(*command).code == 0
    file.write_bytes(lines(1))
    ran = buffer(*command)
    assert ran.code == 2
    assert "has 1 records, but the queue has 3 of client 'a'" in ran.err


def test_should_go_on_behind_an_append_that_lands_after_it_asked(
    buffer: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed had two records under way. They land right after the next run looked."""
    file = tmp_path / "a.txt"
    file.write_bytes(lines(4))
    real = ClientGuard.open
    opened: list[int] = []

    def open_and_be_overtaken(self: ClientGuard, read_manifest):
        found = real(self, read_manifest)
        opened.append(found)
        if len(opened) == 1:
            with Producer(ProducerConfig(store=str(tmp_path / "q")), client_id="a") as late:
                late.produce([b"line 0", b"line 1"], client_seq=range(2))
        return found

    monkeypatch.setattr(ClientGuard, "open", open_and_be_overtaken)
    ran = buffer("produce", "--store", tmp_path / "q", "--client-id", "a", "--from", file)
    assert (ran.code, ran.err) == (0, "")
    assert "2 entries in 1 batch" in ran.out
    assert queued(tmp_path / "q") == [b"line 0", b"line 1", b"line 2", b"line 3"]


@pytest.mark.parametrize(
    "arguments",
    [("--client-id", "a"), ("--from", "{file}"), ("--client-id", "a", "--from", "{file}", "{file}")],
)
def test_should_say_what_goes_together(buffer: InProcess, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"x\n")
    ran = buffer("produce", "--store", tmp_path / "q", *(a.format(file=file) for a in arguments))
    assert ran.code == 2
    assert "--client-id and --from" in ran.err


def test_should_resume_after_kills_without_a_double(tmp_path: Path) -> None:
    """A short form of what `make crash` does two hundred times."""
    file = tmp_path / "a.txt"
    file.write_bytes(lines(20_000))
    queue = tmp_path / "q"
    command = ["produce", "--store", str(queue), "--client-id", "a", "--from", str(file)]
    quick = ["--flush-size-bytes", "2000", "--set", "upload_concurrency=4"]
    for kill in range(4):
        target = _appended(queue) + 20 * (kill + 1)
        with Program(*command, *quick) as running:
            while running.process.poll() is None and _appended(queue) < target:
                time.sleep(0.005)
            running.signal(signal.SIGKILL)
            running.wait()
    assert program(*command).code == 0
    assert queued(queue) == lines(20_000).splitlines()


def _appended(queue: Path) -> int:
    """How many batches there were so far."""
    manifest = queue / MANIFEST
    return Manifest.from_bytes(manifest.read_bytes()).next_sequence if manifest.exists() else 0


# buffer clients


def test_should_list_and_forget_clients(buffer: InProcess, tmp_path: Path) -> None:
    store = tmp_path / "q"
    for name in ("a", "b"):
        with Producer(ProducerConfig(store=str(store)), client_id=name) as producer:
            producer.produce([b"x"], client_seq=7)
    waits = buffer("clients", "forget", "--store", store, "a")
    assert (waits.code, "still has calls in the queue" in waits.err) == (2, True)
    drain(store)
    listed = buffer("clients", "list", "--store", store)
    assert listed.code == 0
    assert "2" in listed.out
    assert buffer("clients", "forget", "--store", store, "a").code == 0
    found = json.loads(buffer("clients", "list", "--store", store, "--json").out)
    assert [(c["client_id"], c["client_seq"], c["sequence"]) for c in found["clients"]] == [("b", 7, 1)]
    assert found["lost"] is None
    assert buffer("clients", "forget", "--store", store).code == 2


def test_should_not_forget_a_client_whose_calls_wait_in_the_queue(buffer: InProcess, tmp_path: Path) -> None:
    """They are kept anew when they leave: the client's new calls would be taken for replays of the old ones."""
    store = tmp_path / "q"
    for client_seq in (0, 1):
        with Producer(ProducerConfig(store=str(store)), client_id="a") as producer:
            producer.produce([b"x"], client_seq=client_seq)
        if client_seq == 0:
            drain(store)
    refused = buffer("clients", "forget", "--store", store, "a")
    assert refused.code == 2
    assert "client 'a' still has calls in the queue, the newest at sequence 1" in refused.err
    drain(store)
    assert buffer("clients", "forget", "--store", store, "a").code == 0
    with Producer(ProducerConfig(store=str(store)), client_id="a") as producer:
        assert producer.next_client_seq == 0


def test_should_tell_of_lost_marks_and_let_an_operator_accept_it(buffer: InProcess, tmp_path: Path) -> None:
    store = tmp_path / "q"
    with Producer(ProducerConfig(store=str(store)), client_id="a") as producer:
        producer.produce([b"x"])
    drain(store, keep_marks=False)
    listed = buffer("clients", "list", "--store", store)
    assert listed.code == 1
    assert "sequences 0 to 0" in listed.out
    assert json.loads(buffer("clients", "list", "--store", store, "--json").out)["lost"] == {"first": 0, "last": 0}
    assert buffer("clients", "forget", "--store", store, "--lost").code == 0
    assert buffer("clients", "list", "--store", store).code == 0
    with Producer(ProducerConfig(store=str(store)), client_id="a") as producer:
        assert producer.next_client_seq == 0
