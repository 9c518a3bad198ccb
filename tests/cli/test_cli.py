"""`buffer`: what all commands share, and those that look at a queue without touching it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click import Command, Context, Option

from buffer.cli.options import parse_store_options
from buffer.cli.shell import describe, exit_code
from buffer.clock import SystemClock, make_ulid
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import CorruptBatch, Fenced, InvalidConfig, ManifestLost, QueueBehindConsumer, StorageError
from buffer.inspect.status import queue_status
from buffer.inspect.verify import Checked, damaged
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.manifest import Manifest
from buffer.store.open import open_store
from tests.cli.cli_support import InProcess, Program, fill, program

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_FILES = [f for f in json.loads((GOLDEN / "index.json").read_text())["files"] if f["kind"] == "manifest"]


def write_ledger(folder: Path, **fields: object) -> None:
    ledger = Ledger(queue_id="01Q", app_id="buffer/01Q", tables=("events",), born=True, epoch=1, **fields)  # type: ignore[arg-type]
    open_store(str(folder)).put("ingest/manifest.ledger", ledger.to_bytes())


# Help, errors, exit codes


COMMANDS = [
    "produce",
    "status",
    "tail",
    "verify",
    "gc",
    "manifest dump",
    "ledger dump",
    "clients list",
    "clients forget",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_should_teach_by_example_in_the_help_of_every_command(buffer: InProcess, command: str) -> None:
    ran = buffer(*command.split(), "--help")
    assert ran.code == 0
    assert f"buffer {command} --store" in " ".join(ran.out.split())
    assert "BUFFER_STORE" in ran.out


def test_should_list_only_commands_that_exist(buffer: InProcess) -> None:
    out = buffer("--help").out
    listed = [line.split()[0] for line in out.partition("Commands:\n")[2].splitlines() if line.startswith("  ")]
    assert listed[:8] == ["produce", "status", "tail", "manifest", "ledger", "clients", "leases", "verify"]
    assert "Exit codes: 0 done, 1 failed, 2 bad usage, 3 fenced, 4 blocked, 5 gap" in " ".join(out.split())


def test_should_show_the_help_when_no_command_is_given(buffer: InProcess) -> None:
    ran = buffer()
    assert ran.code in (0, 2)  # click 8.1 calls that fine, later ones bad usage
    assert "Usage: buffer" in ran.out + ran.err
    assert "error:" not in ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidConfig("x"), 2),
        (Fenced("x"), 3),
        (ManifestLost("x"), 5),
        (QueueBehindConsumer("x"), 5),
        (StorageError("x"), 1),
        (CorruptBatch("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_should_have_one_exit_code_for_each_kind_of_error(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_should_say_errors_in_one_line_without_a_traceback(buffer: InProcess, tmp_path: Path) -> None:
    ran = buffer("status", "--store", tmp_path)
    assert ran.code == 1
    assert ran.err.startswith("error: there is no queue yet")
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_should_show_the_traceback_when_debug_is_asked_for(buffer: InProcess, tmp_path: Path) -> None:
    ran = buffer("status", "--store", tmp_path, "--debug")
    assert "Traceback" in ran.err
    assert "ObjectNotFound" in ran.err


def test_should_point_to_debug_for_errors_that_are_not_ours() -> None:
    assert describe(KeyError("x")) == "KeyError: 'x'"
    assert describe(StorageError("two\nlines")) == "two lines"
    assert describe(OSError(13, "Permission denied", "/f")) == "/f: Permission denied"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["status"], "BUFFER_STORE"),
        (["status", "--store", "ftp://x"], "scheme"),
        (["status", "--store", "q", "--set", "fetch_attempt=1"], "did you mean 'fetch_attempts'"),
        (["status", "--store", "q", "--store-option", "endpoint"], "KEY=VALUE"),
        (["status", "--store", "q", "--config", "nowhere.toml"], "nowhere.toml"),
        (["verify", "--store", "q", "--jobs", "0"], "--jobs"),
        (["produce", "--store", "q", "nowhere.txt"], "nowhere.txt"),
        (["produce", "--store", "q", "--flush-interval-ms", "0", "/dev/null"], "flush_interval_ms=0"),
        (["produce", "--store", "q", "--flush-interval-ms", "9" * 20, "/dev/null"], "at most 86,400,000"),
        (["gc", "--store", "q", "--every", "0"], "--every"),
        (["gc", "--store", "q", "--every", "-1"], "--every"),
        (["gc", "--store", "q", "--every", "nan"], "--every"),
        (["gc", "--store", "q", "--every", "1e300"], "--every"),
        (["gc", "--store", "q", "--wait-s", "nan"], "--wait-s"),
        (["gc", "--store", "q", "--wait-s", "-1"], "--wait-s"),
        (["gc", "--store", "q", "--gc-grace-s", "1e308"], "gc_grace_s=1e+308"),
        (["tail", "--store", "q", "-f", "--interval-s", "-1"], "--interval-s"),
        (["tail", "--store", "q", "-f", "--interval-s", "0"], "--interval-s"),
        (["tail", "--store", "q", "-f", "--interval-s", "nan"], "--interval-s"),
        (["tail", "--store", "q", "-f", "--interval-s", "inf"], "--interval-s"),
        (["gc", "--store", "q", "--gc-grace-s", "10"], "600"),
        (["nothing"], "nothing"),
    ],
)
def test_should_end_with_2_and_name_what_is_wrong_with_the_call(
    buffer: InProcess, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.delenv("BUFFER_STORE", raising=False)
    ran = buffer(*args)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert said in ran.err


def test_should_be_silent_when_the_reader_of_a_pipe_goes_away(tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 100] * 50_000)
    with Program("tail", "--store", tmp_path, "-n", 50_000) as tail:
        tail.stdout.read(100)
        tail.stdout.close()
        assert tail.wait() == 141
        assert tail.stderr.read() == b""


def test_should_say_so_when_nothing_can_be_printed(queue: Path) -> None:
    for command in (("status",), ("tail",), ("gc", "--dry-run")):
        with Program(*command, "--store", queue, preexec_fn=lambda: os.close(1)) as closed:
            ran = closed.finish()
        assert ran.code == 2
        assert ran.err.startswith("error: stdout is closed")
        assert ran.err.count("\n") == 1


def test_should_not_print_warnings_as_results_when_stderr_is_closed(tmp_path: Path) -> None:
    fill(tmp_path, [b"one"])
    (location,) = (entry.location for entry in Manifest.from_bytes((tmp_path / "ingest/manifest").read_bytes()))
    (tmp_path / location).write_bytes(b"not a batch at all")
    with Program("tail", "--store", tmp_path, preexec_fn=lambda: os.close(2)) as closed:
        ran = closed.finish()
    assert (ran.code, ran.out) == (1, "")


def test_should_print_a_completion_script_for_each_shell(buffer: InProcess) -> None:
    for shell in ("bash", "zsh", "fish"):
        ran = buffer("completion", shell)
        assert ran.code == 0
        assert "_BUFFER_COMPLETE" in ran.out


def test_should_complete_a_command_when_the_shell_asks() -> None:
    asked = {"_BUFFER_COMPLETE": "bash_complete", "COMP_WORDS": "buffer ver", "COMP_CWORD": "1"}
    assert program(environment=asked).out == "plain,verify\n"


# Which queue


def test_should_take_the_store_from_the_environment(
    buffer: InProcess, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUFFER_STORE", str(queue))
    assert buffer("status", "--json").json()["length"] == 3


def test_should_find_the_queue_in_whatever_table_the_file_has(buffer: InProcess, queue: Path, tmp_path: Path) -> None:
    config = tmp_path / "buffer.toml"
    config.write_text(f'[loader]\nstore = "{queue}"\ntable = "events"\n')
    assert buffer("status", "--json", "--config", config).json()["length"] == 3


def test_should_prefer_the_command_line_to_the_file(buffer: InProcess, queue: Path, tmp_path: Path) -> None:
    config = tmp_path / "buffer.toml"
    config.write_text(f'[consumer]\nstore = "{tmp_path / "nothing"}"\nmanifest_path = "other/manifest"\n')
    ran = buffer("status", "--json", "--config", config, "--store", queue, "--manifest", "ingest/manifest")
    assert ran.json()["length"] == 3


def test_should_pass_nested_store_options_on(buffer: InProcess) -> None:
    ran = buffer(
        *("status", "--store", "s3://bucket/x", "--store-option", "endpoint=http://127.0.0.1:9"),
        *("--store-option", "client_options.allow_http=true", "--store-option", "retry_config.max_retries=0"),
        *("--store-option", "access_key_id=0123", "--store-option", "secret_access_key=hush"),
    )
    assert ran.code == 1  # nobody listens there; but every option was understood
    assert "127.0.0.1:9" in ran.err or "s3://bucket/x" in ran.err
    assert "hush" not in ran.err


def test_should_hand_nested_store_options_over_as_the_store_wants_them() -> None:
    given = ["client_options.pool_max_idle_per_host=5", "client_options.allow_http=true", "retry_config.max_retries=3"]
    options = parse_store_options(Context(Command("x")), Option(["--x"]), given)
    assert options == {
        "client_options": {"pool_max_idle_per_host": "5", "allow_http": True},
        "retry_config": {"max_retries": 3},
    }
    open_store("s3://bucket/queue", region="eu-1", **options)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("store", ["memory://x", "memory://", "MEMORY://x"])
def test_should_refuse_a_store_that_ends_with_the_command(buffer: InProcess, command: str, store: str) -> None:
    ran = buffer(*command.split(), "--store", store)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith(f"error: store={store!r} is not allowed")
    assert "lives in one process" in ran.err
    assert "./queue" in ran.err


def test_should_refuse_a_memory_store_wherever_it_is_named(
    buffer: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text('[producer]\nstore = "memory://x"\n')
    assert buffer("produce", "--config", tmp_path / "c.toml", "/dev/null").code == 2
    assert buffer("produce", "--set", "store=memory://x", "/dev/null").code == 2
    monkeypatch.setenv("BUFFER_STORE", "memory://x")
    assert buffer("status").code == 2


# status


def test_should_tell_what_waits_without_claiming_anything(buffer: InProcess, queue: Path) -> None:
    before = (queue / "ingest/manifest").read_bytes()
    ran = buffer("status", "--store", queue)
    assert ran.code == 0
    assert "3 batches (0..2)" in ran.out
    assert "no consumer has claimed the queue yet" in ran.out
    assert (queue / "ingest/manifest").read_bytes() == before


def test_should_have_stable_keys_in_the_json_of_status(buffer: InProcess, queue: Path) -> None:
    with Consumer.new(ConsumerConfig(store=str(queue), gc_enabled=False)) as consumer:
        consumer.next_descriptors(2)
        consumer.ack_through(0)
    write_ledger(queue, plan=Plan(after=-1, first=0, last=1), next_sequence=3)
    status = buffer("status", "--store", queue, "--json").json()
    ledger, objects = status.pop("ledger"), status.pop("objects")
    plan = status.pop("plan")
    times = {status.pop(key) is not None for key in ("oldest_ingestion_ms", "newest_ingestion_ms", "manifest_bytes")}
    assert times == {True}
    assert 0 <= status.pop("lag_seconds") < 60
    assert status == {
        "store": queue.as_uri(),
        "manifest": "ingest/manifest",
        "epoch": 1,
        "first_sequence": 1,
        "next_sequence": 3,
        "last_acked": 0,
        "length": 2,
        "blocked": None,
    }
    assert objects["count"] == 3
    assert objects["unreferenced"] == 1
    assert 0 < objects["waiting_bytes"] < objects["bytes"]
    assert ledger["app_id"] == "buffer/01Q"
    assert (plan["first"], plan["last"], plan["state"]) == (0, 1, "under way")


def test_should_not_call_a_plan_committed_that_anybody_may_have_dequeued(buffer: InProcess, queue: Path) -> None:
    with Consumer.new(ConsumerConfig(store=str(queue), gc_enabled=False)) as consumer:
        consumer.next_descriptors(2)
        consumer.ack_through(1)
    write_ledger(queue, plan=Plan(after=-1, first=0, last=1), next_sequence=3)
    out = buffer("status", "--store", queue).out
    assert "0..1 is no longer in the queue; `buffer-delta status` tells if the tables have it" in out
    assert "committed" not in out
    assert buffer("status", "--store", queue, "--json").json()["plan"]["state"] == "dequeued"


def test_should_tell_the_lag_of_a_batch_without_metadata_by_its_name(buffer: InProcess, tmp_path: Path) -> None:
    made_ms = SystemClock().now_ms() - 7_200_000
    manifest = Manifest.empty().append(f"ingest/{make_ulid(made_ms, bytes(10))}.batch")
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest/manifest").write_bytes(manifest.to_bytes())
    status = buffer("status", "--store", tmp_path, "--json").json()
    assert status["oldest_ingestion_ms"] == status["newest_ingestion_ms"] == made_ms
    assert 7_200 <= status["lag_seconds"] < 10_800
    assert "lag            2 h" in buffer("status", "--store", tmp_path).out


def test_should_not_say_that_there_is_no_lag_when_nobody_can_know(buffer: InProcess, tmp_path: Path) -> None:
    manifest = Manifest.empty().append("ingest/01J00000000000000000000000/0000000000000001")
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest/manifest").write_bytes(manifest.to_bytes())
    assert buffer("status", "--store", tmp_path, "--json").json()["lag_seconds"] is None
    assert "lag            unknown" in buffer("status", "--store", tmp_path).out
    (tmp_path / "ingest/manifest").write_bytes(manifest.dequeue(0).to_bytes())
    assert buffer("status", "--store", tmp_path, "--json").json()["lag_seconds"] == 0
    assert "lag            none" in buffer("status", "--store", tmp_path).out


def test_should_tell_why_a_queue_is_blocked(buffer: InProcess, queue: Path) -> None:
    blocked = Blocked(first=0, last=2, reason="1 of its batches cannot be read", batches={1: "truncated"})
    write_ledger(queue, plan=Plan(after=-1, first=0, last=2), blocked=blocked)
    assert "batches 0..2: 1 of its batches cannot be read" in buffer("status", "--store", queue).out
    assert buffer("status", "--store", queue, "--json").json()["blocked"]["batches"] == {"1": "truncated"}


def test_should_leave_the_listing_out_when_asked(buffer: InProcess, queue: Path) -> None:
    assert buffer("status", "--store", queue, "--no-objects", "--json").json()["objects"] is None


def test_should_end_with_5_when_the_manifest_is_lost(buffer: InProcess, queue: Path) -> None:
    write_ledger(queue, next_sequence=3)
    (queue / "ingest/manifest").unlink()
    ran = buffer("status", "--store", queue)
    assert ran.code == 5
    assert "restore the manifest" in ran.err


@pytest.mark.parametrize("command", ["status", "tail", "tail -f", "verify", "gc", "manifest dump"])
def test_should_not_take_a_file_for_a_queue_to_come(buffer: InProcess, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("in the way")
    ran = buffer(*command.split(), "--store", tmp_path / "file")
    assert ran.code == 1
    assert f"{str(tmp_path / 'file')!r} is not a folder" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "tail", "tail -f", "verify", "gc", "manifest dump", "produce"])
def test_should_say_so_when_the_manifest_is_a_folder(buffer: InProcess, tmp_path: Path, command: str) -> None:
    (tmp_path / "q/ingest/manifest").mkdir(parents=True)
    (tmp_path / "a.txt").write_bytes(b"one\n")
    ran = buffer(*command.split(), "--store", tmp_path / "q", *([tmp_path / "a.txt"] if command == "produce" else []))
    assert ran.code == 2
    assert "'ingest/manifest'" in ran.err
    assert "folder" in ran.err
    assert "there is no queue yet" not in ran.err


def test_should_say_so_when_a_file_is_in_the_way_of_the_manifest(buffer: InProcess, tmp_path: Path) -> None:
    (tmp_path / "ingest").write_text("in the way")
    ran = buffer("status", "--store", tmp_path)
    assert ran.code == 2
    assert "a file has the name of one of its folders" in ran.err


def test_should_survive_any_time_that_a_writer_put_into_the_queue(buffer: InProcess) -> None:
    ran = buffer("status", "--store", GOLDEN, "--manifest", "manifest/direct_extremes")
    assert ran.code == 0


def test_should_show_a_status_in_notebooks(queue: Path) -> None:
    status = queue_status(open_store(str(queue)))
    assert "waiting: 3 batches (0..2)" in str(status)
    assert "<td style='text-align:left'>3 batches (0..2)" in status._repr_html_()


# manifest dump, ledger dump


@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda f: f["file"])
def test_should_dump_manifests_of_the_reference_implementation(buffer: InProcess, file: dict[str, object]) -> None:
    ran = buffer("manifest", "dump", "--store", GOLDEN, "--manifest", file["file"])
    if file["want"] == "accept":
        assert ran.json() == file["expect"]
        assert list(ran.json()) == ["version", "epoch", "next_sequence", "entries"]
    else:
        assert ran.code == 1
        assert ran.out == ""
        assert str(file["file"]) in ran.err


def test_should_dump_on_one_line_for_programs(buffer: InProcess, queue: Path) -> None:
    assert buffer("manifest", "dump", "--store", queue, "--json").out.count("\n") == 1


def test_should_dump_the_ledger_as_it_is_stored(buffer: InProcess, queue: Path) -> None:
    assert buffer("ledger", "dump", "--store", queue).code == 1
    write_ledger(queue, plan=Plan(after=-1, first=0, last=1, quarantined={1: "bad"}))
    stored = json.loads((queue / "ingest/manifest.ledger").read_bytes())
    assert buffer("ledger", "dump", "--store", queue).json() == stored
    assert stored["plan"]["range"]["quarantined"] == {"1": "bad"}


def test_should_dump_sections_that_it_does_not_know(buffer: InProcess, queue: Path) -> None:
    write_ledger(queue, sections={"leases": {"7": [1, None]}})
    assert buffer("ledger", "dump", "--store", queue).json()["leases"] == {"7": [1, None]}
    assert buffer("status", "--store", queue).code == 0


def test_should_dump_an_older_ledger_in_the_form_of_today(buffer: InProcess, queue: Path) -> None:
    golden = Path(__file__).parent.parent / "golden" / "ledger" / "v1_blocked.json"
    (queue / "ingest/manifest.ledger").write_bytes(golden.read_bytes())
    dumped, old = buffer("ledger", "dump", "--store", queue).json(), json.loads(golden.read_bytes())
    assert (dumped["version"], dumped["epoch"], dumped["plan"]["range"]) == (2, 1, old["plan"])
    assert dumped["plan"]["blocked"] == old["blocked"]


# verify


def test_should_find_everything_fine(buffer: InProcess, queue: Path) -> None:
    ran = buffer("verify", "--store", queue, "--json")
    assert (ran.code, ran.err) == (0, "")  # no progress bar where nobody looks
    found = ran.json()
    assert (found["batches"], found["entries"], found["damaged"]) == (3, 6, [])


def test_should_list_batches_that_are_missing_or_do_not_decode(buffer: InProcess, queue: Path) -> None:
    entries = list(Manifest.from_bytes((queue / "ingest/manifest").read_bytes()))
    (queue / entries[0].location).unlink()
    (queue / entries[2].location).write_bytes(b"not a batch at all")
    ran = buffer("verify", "--store", queue, "--json")
    assert ran.code == 1
    assert [(d["sequence"], d["problem"]) for d in ran.json()["damaged"]] == [(0, "missing"), (2, "corrupt")]
    said = buffer("verify", "--store", queue)
    assert said.code == 1
    assert "2 of 3 batches damaged" in said.out
    assert entries[0].location in said.out
    assert buffer("verify", "--store", queue, "--from", 1, "--json").json()["damaged"][0]["sequence"] == 2


def test_should_not_call_batches_damaged_that_were_acked_meanwhile() -> None:
    newest = Manifest.empty().append("a").append("b").append("c").dequeue(1)
    checked = [Checked(2, "c", problem="missing"), Checked(0, "a", problem="missing"), Checked(1, "b")]
    assert [item.sequence for item in damaged(checked, newest)] == [2]
