"""Queues, ledgers, servers and surroundings that mean harm: commands read no more than the queue's own, print nothing
that drives a terminal, stay within memory, and end when told to."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from ulid import ULID

from buffer.cli import printing
from buffer.cli.interrupts import InterruptibleClock, check_interrupt, interruptible
from buffer.cli.look import manifest_document
from buffer.cli.printing import one_line, print_json, printable, printable_json
from buffer.codec.batch import encode_batch
from buffer.ledger.plan import Blocked
from buffer.manifest import Manifest, PackedMetadata
from tests.cli.cli_support import InProcess, Program, fill, program
from tests.cli.test_cli import write_ledger
from tests.contract.test_failures import _answers, _error
from tests.servers import ScriptedServer

HOSTILE = "\x1b[31m\x9b\x07\x7f\u202e\u2066\u200b\u2028\ue000"
"""ESC, the one-character CSI, BEL, DEL, two that turn the direction of text, and others that do not show."""


def append(queue: Path, *locations: str) -> None:
    """As somebody who may write the manifest, and nothing else."""
    path = queue / "ingest/manifest"
    manifest = Manifest.from_bytes(path.read_bytes())
    for location in locations:
        manifest = manifest.append(location)
    path.write_bytes(manifest.to_bytes())


def is_clean(text: str) -> bool:
    return all(c.isprintable() or c in "\n" for c in text)


# Locations that are not the queue's


@pytest.fixture
def lured(tmp_path: Path) -> Path:
    """A queue between two good batches of which the manifest names what is not the queue's."""
    queue = tmp_path / "queue"
    fill(queue, [b"one"])
    (queue / "other").mkdir()
    (queue / "other/secret.txt").write_bytes(encode_batch([b"secret"]))
    (tmp_path / "outside.batch").write_bytes(encode_batch([b"secret"]))
    (queue / "ingest/link.batch").symlink_to(tmp_path / "outside.batch")
    os.mkfifo(queue / "ingest/pipe.batch")
    append(
        queue,
        "other/secret.txt",
        "../outside.batch",
        "ingest/../other/secret.txt",
        str(tmp_path / "outside.batch"),
        "ingest/%2e%2e/other/secret.txt",
        "ingest/link.batch",
        "ingest/pipe.batch",
        "",
        "ingest/" + "x" * 5000,
    )
    fill(queue, [b"two"])
    return queue


def test_should_refuse_what_is_not_the_queues_one_by_one_and_by_name(buffer: InProcess, lured: Path) -> None:
    ran = buffer("verify", "--store", lured, "--json")
    damaged = ran.json()["damaged"]
    assert [(found["sequence"], found["problem"]) for found in damaged] == [(n, "refused") for n in range(1, 10)]
    assert "'other/secret.txt' lies outside of 'ingest'" in damaged[0]["error"]
    assert "former_prefixes" in damaged[0]["error"]
    assert (ran.code, ran.json()["batches"], ran.json()["entries"]) == (1, 11, 2)
    assert buffer("verify", "--store", lured).code == 1

    for options in (["--from", 0], ["-n", 10]):
        ran = buffer("tail", "--store", lured, *options)
        assert (ran.code, ran.out) == (1, "one\ntwo\n")
        assert [f"batch {n} is refused" in ran.err for n in range(1, 10)] == [True] * 9


def test_should_read_older_batches_where_the_operator_says_they_are(buffer: InProcess, lured: Path) -> None:
    ran = buffer("tail", "--store", lured, "--from", 0, "--set", 'former_prefixes=["other"]')
    assert ran.out == "one\nsecret\ntwo\n"
    assert "batch 1 is refused" not in ran.err


# Printing


def test_should_escape_whatever_does_not_simply_show() -> None:
    for text in (HOSTILE, "a\nb", "a\rb", "\ud800", "a\tb", "\xa0"):
        assert is_clean(printable(text))
        assert "\n" not in printable(text)
        assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text
        assert is_clean(printable_json(json.dumps(text, ensure_ascii=False)))
    assert printable("\x1b[31m") == "\\x1b[31m"
    assert printable("日本 ünïcode 🙂") == "日本 ünïcode 🙂"
    assert one_line("one\n  two\r\nthree\x1b") == "one two three\\x1b"


@pytest.fixture
def hostile_queue(tmp_path: Path) -> Path:
    fill(tmp_path, [b"one", HOSTILE.encode()])
    append(tmp_path, f"ingest/{HOSTILE}\nerror: forged")
    write_ledger(tmp_path, blocked=Blocked(first=0, last=1, reason=HOSTILE, batches={1: HOSTILE}))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        *(["status"], ["status", "--json"], ["manifest", "dump"], ["manifest", "dump", "--json"]),
        *(["ledger", "dump"], ["ledger", "dump", "--json"], ["verify"], ["verify", "--json"]),
        *(["tail", "--json", "--from", "0"], ["gc", "--dry-run"], ["gc", "--dry-run", "--json"]),
        *(
            ["tail", "--manifest", f"{HOSTILE}/m"],
            ["status", "--store", f"nowhere/{HOSTILE}"],
            ["status", f"--{HOSTILE}"],
        ),
        *(["status", "--set", f"{HOSTILE}=1"], ["status", "--config", f"/{HOSTILE}"]),
        ["--debug", "status", "--manifest", f"{HOSTILE}/m"],
    ],
    ids=ascii,
)
def test_should_print_no_control_character_from_outside(
    buffer: InProcess, hostile_queue: Path, command: list[str]
) -> None:
    ran = buffer(*command, *([] if "--store" in command else ["--store", hostile_queue]))
    assert ran.out + ran.err
    assert is_clean(ran.out)
    assert is_clean(ran.err)
    assert not any(line.startswith("error: forged") for line in ran.err.splitlines())


def test_should_keep_the_values_in_json_what_they_are(buffer: InProcess, hostile_queue: Path) -> None:
    records = [
        json.loads(line)["value"] for line in buffer("tail", "--json", "--store", hostile_queue).out.splitlines()
    ]
    assert records == ["one", HOSTILE]
    entries = buffer("manifest", "dump", "--store", hostile_queue).json()["entries"]
    assert entries[1]["location"] == f"ingest/{HOSTILE}\nerror: forged"
    assert buffer("status", "--store", hostile_queue, "--json").json()["blocked"]["reason"] == HOSTILE


def test_should_print_no_control_character_that_a_server_sends(buffer: InProcess) -> None:
    reply = _error(403, "AccessDenied", "denied \x9b2J \u202egnp.exe")
    with ScriptedServer(_answers(reply)) as server:
        options = [
            *("access_key_id=AKIAxxxx", "secret_access_key=hushhush", "region=us-east-1"),
            *("client_options.allow_http=true", f"endpoint={server.endpoint}"),
        ]
        ran = buffer("status", "--store", "s3://bucket/q", *[arg for o in options for arg in ("--store-option", o)])
    assert ran.code == 1
    assert "AccessDenied: denied \\x9b2J \\u202egnp.exe" in ran.err
    assert is_clean(ran.err)
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_should_print_what_the_encoding_of_the_terminal_lacks(tmp_path: Path, encoding: str) -> None:
    text = "\u2603\U0001f600"
    fill(tmp_path, [text.encode()])
    terminal = {"PYTHONIOENCODING": encoding}
    shown = program("tail", "--store", tmp_path, "--json", environment=terminal)
    assert (shown.code, shown.json()["value"]) == (0, text)
    assert r"\u2603\ud83d\ude00" in shown.out
    assert program("status", "--help", environment={"PYTHONIOENCODING": "latin-1"}).code == 0


def test_should_have_one_way_out() -> None:
    """Everything printed goes through `printing`: a direct `click.echo` would skip the escaping."""
    source = Path(printing.__file__).parents[2]
    offenders = [
        f"{path.name}: {line.strip()}"
        for package in ("buffer/cli", "buffer_delta/cli")
        for path in (source / package).glob("*.py")
        if path.name not in ("printing.py", "demo_worker.py")  # the worker talks to the demo alone, in ASCII JSON
        for line in path.read_text().splitlines()
        if "click.echo(" in line or "click.secho(" in line or "print(" in line.replace("console.print(", "")
    ]
    assert offenders == [
        "shell.py: click.echo(kind(ctx.find_root().command, {}, program, completion_variable(program)).source())"
    ]


# Sizes


@pytest.mark.parametrize("which", ["manifest", "manifest.ledger"])
@pytest.mark.parametrize(
    "command", ["status", "tail", "verify", "gc", "produce {records}", "leases consume", "clients list"]
)
def test_should_not_read_a_manifest_or_a_ledger_of_any_size(
    buffer: InProcess, tmp_path: Path, command: str, which: str
) -> None:
    """A file of 6 GiB takes no room on the disk, and would take all of the memory of whoever reads it."""
    fill(tmp_path, [b"one"])
    (tmp_path / "ingest" / which).touch()
    os.truncate(tmp_path / "ingest" / which, 6 << 30)
    records = tmp_path / "records"
    records.write_bytes(b"x\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = buffer(*command.format(records=records).split(), "--store", tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "in KiB"
    if which == "manifest" or ran.code != 0:
        assert ran.code not in (0, 2)
        assert "6,442,450,944 bytes, and at most 536,870,912 may be read" in ran.err
    (tmp_path / "ingest" / which).unlink()


# Keys


@pytest.mark.parametrize(
    "options",
    [
        ["--store", "s3://AKIA-hidden:hu/sh@bucket/q"],
        ["--store", "s3:AKIA-hidden:hush@b"],
        ["--store", "file://AKIA-hidden:hush@h"],
        ["--store", "memory://AKIA-hidden:hush@h"],
        ["--store", "memory:AKIA-hidden:hush@h"],
        ["--store", "s3://bucket/q", "--store-option", "hush"],
        ["--store", "s3://bucket/q", "--store-option", "secret_access_key", "=", "hush"],
        ["--store", "s3://bucket/q", "--store-option", "endpoint=hush"],
        ["--store", "s3://bucket/q", "--store-option", "skip_signature=hush"],
        ["--store", "s3://bucket/q", "--store-option", "client_options=hush"],
        ["--store", "s3://bucket/q", "--set", "secret_access_key=hush"],
        ["--store", "s3://bucket/q", "--set", "hush"],
        ["--store", "s3://bucket/q", "--secret-access-key", "hush"],
        ["--store", "s3://bucket/q", "--secret-access-key=hush"],
        ["--store", ".", "--manifest", "s3://AKIA-hidden:hush@b/m"],
        ["--store", ".", "--prefix", "s3://AKIA-hidden:hush@b/m"],
        ["--store", ".", "--set", "data_path_prefix=s3://AKIA-hidden:hush@b"],
        ["--store", ".", "--config", "s3://AKIA-hidden:hush@b/c.toml"],
        ["--store", ".", "--log-format", "s3://AKIA-hidden:hush@b"],
        ["--store", ".", "--log-format", "secret_access_key=hush"],
        ["--store", ".", "--log-format", "s3://AKIA-hidden:hu sh@b"],
        ["--store", "https://account.blob.core.windows.net/q?sv=2026&sig=hush"],
        ["--store", "account.blob.core.windows.net/q?sv=2026&sig=hush"],
        ["--store", "az:q?sv=2026&sig=hush"],
        ["--store", "sv=2026&sig=hush"],
        ["--store", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hush;EndpointSuffix=core.windows.net"],
        ["--store", ".", "--manifest", "https://account.blob.core.windows.net/q?sv=2026&sig=hush"],
        ["--store", ".", "--manifest", "https://bucket/q?X-Amz-Date=20260101&X-Amz-Signature=hush&x=1"],
        ["--store", ".", "--prefix", "/q?sv=2026&x-amz-security-token=hush"],
        ["--store", ".", "--log-format", "https://bucket/q?a=1&password=hush"],
    ],
    ids=ascii,
)
def test_should_never_repeat_a_key_that_stands_in_the_wrong_place(buffer: InProcess, options: list[str]) -> None:
    ran = buffer("status", *options)
    assert ran.code == 2
    assert "hu" not in (ran.out + ran.err).replace("hush", "hu")
    assert "AKIA" not in ran.out + ran.err
    assert ran.err.startswith("error: ")


@pytest.mark.parametrize(
    "command",
    [
        ["tail", "-n", "secret_access_key=hush"],
        ["tail", "-n", "AKIA-hidden:hush@b"],
        ["gc", "--every", "s3://AKIA-hidden:hush@b"],
        ["s3://AKIA-hidden:hush@b"],
        ["produce", "s3://AKIA-hidden:hush@b/records"],
        ["produce", "--max-batches", "s3://AKIA-hidden:hush@b/records"],
    ],
    ids=ascii,
)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_should_never_repeat_a_key_that_another_command_was_given(
    buffer: InProcess, tmp_path: Path, command: list[str], debug: list[str]
) -> None:
    ran = buffer(*command, *(["--store", str(tmp_path)] if len(command) > 1 else []), *debug)
    assert ran.code
    assert "hu" not in (ran.out + ran.err).replace("hush", "hu")
    assert "AKIA" not in ran.out + ran.err


@pytest.mark.parametrize("endpoint", ["", "::", "http://", "not a url", "http://h:99999", "http://\x1b[31mh"])
def test_should_say_in_one_line_that_an_endpoint_is_none(endpoint: str) -> None:
    """As a program: a native traceback would go past Python to stderr."""
    with Program("status", "--store", "s3://bucket/q", "--store-option", f"endpoint={endpoint}") as running:
        ran = running.finish()
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("error: the store option endpoint is not an endpoint")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWS_ACCESS_KEY_ID", "AKIA-hidden\n"),
        ("AWS_SESSION_TOKEN", "hush\n"),
        ("AWS_REGION", "eu-north-1\n"),
        ("AWS_METADATA_ENDPOINT", "://hush"),
    ],
)
def test_should_say_in_one_line_that_a_variable_cannot_be_what_it_is_for(variable: str, value: str) -> None:
    """A file's last newline, say: at each request the library would panic, and the command would try for a minute."""
    env = {"AWS_ACCESS_KEY_ID": "AKIA-hidden", "AWS_SECRET_ACCESS_KEY": "hush"}
    with Program("status", "--store", "s3://bucket/q", environment={**env, variable: value}) as running:
        ran = running.finish()
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"error: the environment variable {variable} ")
    assert "hush" not in ran.err


def test_should_say_so_when_a_value_is_nested_too_deeply(buffer: InProcess, tmp_path: Path) -> None:
    ran = buffer("status", "--store", tmp_path, "--set", "x=" + "[" * 100_000)
    assert (ran.code, "nested too deeply" in ran.err) == (2, True)
    deep = tmp_path / "deep.toml"
    deep.write_text("x = " + "[" * 100_000)
    ran = buffer("status", "--config", deep)
    assert (ran.code, "nested too deeply" in ran.err) == (2, True)


# Memory


def test_should_dump_a_manifest_of_many_items_without_holding_them_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    items = 30_000
    packed = PackedMetadata.pack(range(items), [1] * items)
    data = Manifest.empty().append_all([("ingest/a.batch", packed)]).to_bytes()
    manifest = Manifest.from_bytes(data)
    with Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        tracemalloc.start()
        print_json(manifest_document(manifest), indent=2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 * len(data)  # a document of all of them takes 60 times the bytes


def test_should_hold_one_batch_at_a_time_when_bombs_are_shown(tmp_path: Path) -> None:
    """Each takes a few kB in the store and 64 MB in memory: 12 of them must not be held together."""
    fill(tmp_path, [b"x"])
    manifest = Manifest.from_bytes((tmp_path / "ingest/manifest").read_bytes())
    for number in range(12):
        (tmp_path / f"ingest/{number}.batch").write_bytes(encode_batch([bytes(64_000_000)], "zstd"))
        manifest = manifest.append(f"ingest/{number}.batch")
    (tmp_path / "ingest/manifest").write_bytes(manifest.to_bytes())
    code = (
        "import resource, sys\n"
        "from buffer.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
    )
    for command in (["tail", "-n", "12"], ["verify", "--jobs", "12"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *command, "--store", str(tmp_path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert int(ran.stderr.splitlines()[-1]) < 900_000, command  # kB: a batch, its copies, Arrow, Python


# Signals


@pytest.mark.parametrize(
    ("command", "sign"),
    [
        (["tail", "-f", "--interval-s", "300"], "stdout"),
        (["gc", "--every", "300", "--json"], "stdout"),
        (["gc", "--wait-s", "300", "--json"], None),
    ],
)
def test_should_end_on_ctrl_c_even_if_it_was_started_with_the_signal_ignored(
    tmp_path: Path, command: list[str], sign: str | None
) -> None:
    """As a script starts what it puts into the background."""
    fill(tmp_path, [b"one"])
    if sign is None:
        # Old enough for a first look, and too young for a second one before the queue changes: the command waits.
        two_hours_ago = ULID.from_timestamp(time.time() - 2 * 3600)
        (tmp_path / f"ingest/{two_hours_ago}.batch").write_bytes(b"")
        command = ["-v", *command]
    ignore = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = Program(*command, "--store", tmp_path)
    finally:
        signal.signal(signal.SIGINT, ignore)
    with program:
        assert (program.stdout if sign else program.stderr).readline()
        program.signal(signal.SIGINT)
        assert program.wait() == 130


def test_should_end_a_wait_although_the_interrupt_was_dropped() -> None:
    """As when the signal arrives while a destructor runs: Python prints such an error and goes on."""

    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    unraisable: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: unraisable.append(args.exc_type)
    try:
        with interruptible():
            Dropped()
            assert unraisable == [KeyboardInterrupt]
            with pytest.raises(KeyboardInterrupt):
                InterruptibleClock().sleep(1000)
            with pytest.raises(KeyboardInterrupt):
                check_interrupt()
    finally:
        sys.unraisablehook = hook
    check_interrupt()  # the next command starts with a clean slate
