"""`buffer-delta`, as far as it goes without Spark: settings, exit codes, unblocking, and what is missing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from buffer.cli.shell import exit_code
from buffer.errors import Fenced, InvalidConfig, LedgerLost
from buffer.inspect.status import read_ledger
from buffer.ledger.plan import Blocked as BlockedState
from buffer.ledger.plan import Ledger, Plan
from buffer.store.open import open_store
from buffer_delta.cli import cli
from buffer_delta.cli.app import EXIT_CODES
from buffer_delta.cli.demo import MARKER, prepare_folder
from buffer_delta.cli.demo_run import BATCHES_PER_COMMIT, Speed
from buffer_delta.cli.demo_show import is_exact
from buffer_delta.cli.settings import loader_settings
from buffer_delta.cli.spark import slow_start_hint
from buffer_delta.cli.status import _where
from buffer_delta.config import LoaderConfig
from buffer_delta.errors import (
    Blocked,
    LedgerBehind,
    QueueBound,
    RouteChanged,
    SequenceGap,
    TableReplaced,
    TableRewritten,
)
from tests.cli.cli_support import InProcess, Ran, fill, small_disk
from tests.nets import HANGS_S


@pytest.fixture
def buffer_delta(capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capfd, cli, "buffer-delta", EXIT_CODES)


def settings_of(*args: object) -> LoaderConfig:
    """The LoaderConfig that `buffer-delta load` would make of these arguments."""
    with cli.commands["load"].make_context("load", [str(arg) for arg in args]) as context:
        return loader_settings(context.params)


# Keys


@pytest.mark.parametrize(
    "options",
    [
        ["--table", "s3a:AKIA-hidden:hush@b"],
        ["--table", "./t", "--dead-letters", "AKIA-hidden:hush@b"],
        ["--table", "./t", "--set", "serve=AKIA-hidden:hush@b"],
        ["--table", "./t", "--set", "format=s3://AKIA-hidden:hush@b"],
        ["--table", "./t", "--serve", "s3://AKIA-hidden:hush@b"],
        ["--table", "./t", "--manifest", "s3://AKIA-hidden:hush@b/m"],
    ],
    ids=ascii,
)
def test_should_never_repeat_a_key_that_stands_in_the_wrong_place(
    buffer_delta: InProcess, tmp_path: Path, options: list[str]
) -> None:
    config = tmp_path / "buffer.toml"
    named = [option.removeprefix("--").replace("-", "_") for option in options if option.startswith("--")]
    values = [option for option in options if not option.startswith("--")]
    pairs = [value.split("=", 1) if name == "set" else (name, value) for name, value in zip(named, values, strict=True)]
    config.write_text("[loader]\nstore = './q'\n" + "".join(f"{name} = '{value}'\n" for name, value in pairs))
    for given in (["--store", tmp_path, *options], ["--config", config]):
        ran = buffer_delta("load", *given)
        assert ran.code == 2
        assert "hush" not in ran.out + ran.err
        assert "AKIA" not in ran.out + ran.err


# Help and exit codes


@pytest.mark.parametrize("command", ["load", "status", "unblock", "demo"])
def test_should_teach_by_example_in_the_help_of_every_command(buffer_delta: InProcess, command: str) -> None:
    ran = buffer_delta(command, "--help")
    assert ran.code == 0
    assert f"buffer-delta {command}" in ran.out.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidConfig("x"), 2),
        (QueueBound("x"), 2),
        (RouteChanged("x"), 2),
        (Fenced("x"), 3),
        (Blocked("x"), 4),
        (SequenceGap("x"), 5),
        (TableReplaced("x"), 5),
        (TableRewritten("x"), 5),
        (LedgerBehind("x"), 5),
        (LedgerLost("x"), 5),
        (RuntimeError("x"), 1),
    ],
)
def test_should_have_one_exit_code_for_each_kind_of_error(error: Exception, code: int) -> None:
    assert exit_code(error, EXIT_CODES) == code


# Settings


def test_should_make_settings_of_options() -> None:
    config = settings_of(
        *("--store", "./q", "--table", "db.events", "--format", "json", "--schema", "id BIGINT"),
        *("--dead-letters", "db.bad", "--dlq-strategy", "skip", "--app-id", "mine", "--adopt"),
        *("--partition-by", "day", "--partition-by", "hour", "--table-property", "delta.appendOnly=true"),
        *("--merge-schema", "--column", "_sequence=seq", "--column", "_entry_metadata="),
        *("--route-by", "kind", "--route", "a=db.a", "--route", "b=db.b"),
        *("--max-batches-per-commit", 7, "--on-gap", "skip", "--set", "retry_max_s=2.5"),
    )
    assert config == LoaderConfig(
        store="./q",
        table="db.events",
        format={"type": "json", "schema": "id BIGINT"},
        dead_letters="db.bad",
        dlq_strategy="skip",
        app_id="mine",
        adopt=True,
        partition_by=["day", "hour"],
        table_properties={"delta.appendOnly": "true"},
        merge_schema=True,
        columns={"_sequence": "seq", "_entry_metadata": None},
        route_by="kind",
        routes={"a": "db.a", "b": "db.b"},
        max_batches_per_commit=7,
        on_gap="skip",
        retry_max_s=2.5,
    )


def test_should_leave_the_defaults_alone_when_no_option_is_given() -> None:
    assert settings_of("--store", "./q", "--table", "t") == LoaderConfig(store="./q", table="t")


def test_should_take_every_setting_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[loader]\nstore = "./q"\ntable = "t"\ndead_letters = "d"\nmax_delivery_attempts = 2\n'
        'gc_enabled = false\ncluster_by = ["id"]\nformat = {type = "json", schema = "id BIGINT"}\n'
        'columns = {_index = "i"}\ntransform = "json:loads"\n[loader.store_options]\nregion = "r"\n'
    )
    config = settings_of("--config", tmp_path / "c.toml", "--table", "other", "--schema", "id STRING")
    assert (config.table, config.dead_letters, config.max_delivery_attempts) == ("other", "d", 2)
    assert (config.gc_enabled, config.cluster_by, config.columns) == (False, ["id"], {"_index": "i"})
    assert config.format == {"type": "json", "schema": "id STRING"}
    assert config.store_options == {"region": "r"}
    assert config.transform is not None
    assert config.transform("1") == 1


def test_should_reach_every_plain_setting_by_set() -> None:
    given = LoaderConfig(store="s", table="t", dead_letters="d", dlq_strategy="skip", app_id="a", on_gap="skip")
    plain = {name: getattr(given, name) for name in LoaderConfig.setting_names()}
    plain = {name: value for name, value in plain.items() if isinstance(value, str | int | float)}
    assert len(plain) > 20
    sets = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in plain.items()]
    assert settings_of(*(word for pair in sets for word in ("--set", pair))) == given


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["load", "--store", "q"], "which table?"),
        (["load", "--table", "t"], "which queue?"),
        (["load", "--store", "q", "--table", "t", "--adopt"], "adopt=True needs app_id"),
        (["load", "--store", "q", "--table", "t", "--schema", "id INT"], "--schema needs --format"),
        (["load", "--store", "q", "--table", "t", "--transform", "nowhere:f"], "cannot be imported"),
        (["load", "--store", "q", "--table", "t", "--transform", "json"], "module:function"),
        (["load", "--store", "q", "--table", "t", "--route", "a"], "KEY=VALUE"),
        (["load", "--store", "q", "--table", "t", "--set", "tabel=1"], "did you mean 'table'"),
        (["load", "--store", "q", "--table", "t", "--spark-conf", "a"], "KEY=VALUE"),
        (["load", "--store", "memory://x", "--table", "t"], "lives in one process"),
        (["status", "--store", "memory://x"], "lives in one process"),
        (["unblock", "--store", "memory://x"], "lives in one process"),
        (["status"], "[loader] table has a store"),
        (["load", "--store", "q", "--table", "t", "--fenced-wait-s", "nan"], "--fenced-wait-s"),
        (["load", "--store", "q", "--table", "t", "--trigger-interval-s", "1e300"], "trigger_interval_s=1e+300"),
        (["demo", "--seconds", "nan"], "--seconds"),
        (["demo", "--seconds", "-1"], "--seconds"),
    ],
)
def test_should_end_with_2_and_name_what_is_wrong_with_the_call(
    buffer_delta: InProcess, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.delenv("BUFFER_STORE", raising=False)
    ran = buffer_delta(*args)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.startswith("error: ")


# unblock, and status where no loader was


def block(folder: Path) -> None:
    fill(folder, [b"one"], [b"two"])
    ledger = Ledger(
        queue_id="01Q",
        app_id="buffer/01Q",
        tables=("events",),
        born=True,
        epoch=1,
        plan=Plan(after=-1, first=0, last=1, attempts=6),
        blocked=BlockedState(first=0, last=1, reason="1 of its batches cannot be read", batches={1: "truncated"}),
    )
    open_store(str(folder)).put("ingest/manifest.ledger", ledger.to_bytes())


def test_should_let_a_blocked_loader_try_again(buffer_delta: InProcess, tmp_path: Path) -> None:
    block(tmp_path)
    ran = buffer_delta("unblock", "--store", tmp_path)
    assert ran.code == 0
    assert "batches 0..1 are released: 1 batch will be tried again" in ran.out
    ledger = read_ledger(open_store(str(tmp_path)), "ingest/manifest")
    assert ledger is not None
    assert ledger.blocked is None
    assert ledger.plan == Plan(after=-1, first=0, last=1, attempts=0)
    assert buffer_delta("unblock", "--store", tmp_path).out == "nothing is blocked\n"


def test_should_give_the_bad_batches_up_when_told_to_skip(buffer_delta: InProcess, tmp_path: Path) -> None:
    block(tmp_path)
    ran = buffer_delta("unblock", "--store", tmp_path, "--skip", "--json")
    assert ran.json()["unblocked"]["batches"] == {"1": "truncated"}
    ledger = read_ledger(open_store(str(tmp_path)), "ingest/manifest")
    assert ledger is not None
    assert ledger.plan is not None
    assert ledger.plan.quarantined == {1: "truncated"}


def test_should_not_give_batches_up_and_load_them_in_another_way(buffer_delta: InProcess, tmp_path: Path) -> None:
    block(tmp_path)
    ran = buffer_delta("unblock", "--store", tmp_path, "--skip", "--replan")
    assert ran.code == 2
    assert "choose one" in ran.err


def test_should_say_when_there_is_nothing_to_replan(buffer_delta: InProcess, tmp_path: Path) -> None:
    """A range of several tables of which nothing is decided: the next start may take it on as it is."""
    block(tmp_path)
    store = open_store(str(tmp_path))
    ledger = Ledger.from_bytes(store.get("ingest/manifest.ledger").data)
    assert ledger.plan is not None
    plan = dataclasses.replace(ledger.plan, tables=("events", "bad"))
    store.put("ingest/manifest.ledger", ledger.changed(plan=plan, blocked=None).to_bytes())
    assert "nothing was begun" in buffer_delta("unblock", "--store", tmp_path, "--replan").out
    assert buffer_delta("unblock", "--store", tmp_path, "--replan", "--json").json() == {"replanned": None}


def test_should_look_for_tables_where_they_are_and_not_in_the_folder_of_the_command() -> None:
    """From another folder `./clicks` would seem to hold nothing, and a range be replanned that it holds a part of."""
    tables, places = ("./events", "./clicks", "s3a://b/bad", "db.t"), ("file:/a/events", "file:/a/clicks", "s3://b/bad")
    ledger = Ledger(queue_id="q", tables=tables, places=(*places, "spark_catalog.db.t"))
    found = _where(ledger)
    assert found == dict(zip(tables, ("file:/a/events", "file:/a/clicks", "s3a://b/bad", "db.t"), strict=True))
    assert _where(dataclasses.replace(ledger, places=())) == {name: name for name in tables}


def test_should_not_call_a_queue_unblocked_that_is_not_there(buffer_delta: InProcess, tmp_path: Path) -> None:
    ran = buffer_delta("unblock", "--store", tmp_path / "nope")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith("error: there is no queue yet")
    block(tmp_path)
    (tmp_path / "ingest/manifest").unlink()
    before = (tmp_path / "ingest/manifest.ledger").read_bytes()
    assert buffer_delta("unblock", "--store", tmp_path).code == 5
    assert (tmp_path / "ingest/manifest.ledger").read_bytes() == before


def test_should_look_at_the_queue_of_the_loader_when_the_file_has_several(
    buffer_delta: InProcess, tmp_path: Path
) -> None:
    loaded, consumed = tmp_path / "loaded", tmp_path / "consumed"
    fill(loaded, [b"one"], [b"two"], [b"three"])
    block(consumed)
    (tmp_path / "c.toml").write_text(f'[consumer]\nstore = "{consumed}"\n[loader]\nstore = "{loaded}"\ntable = "t"\n')
    assert buffer_delta("status", "--config", tmp_path / "c.toml", "--json").json()["store"] == loaded.as_uri()
    assert buffer_delta("unblock", "--config", tmp_path / "c.toml").out == "nothing is blocked\n"
    ledger = read_ledger(open_store(str(consumed)), "ingest/manifest")
    assert ledger is not None
    assert ledger.blocked is not None


def test_should_show_the_queue_alone_when_no_loader_was_there(buffer_delta: InProcess, tmp_path: Path) -> None:
    fill(tmp_path, [b"one"])
    status = buffer_delta("status", "--store", tmp_path, "--json").json()
    assert (status["length"], status["ledger"], status["tables"]) == (1, None, [])


# What is missing


def program(*args: object, environment: dict[str, str], prelude: str = "") -> Ran:
    """A process of its own: in this one a Spark session may be running already."""
    code = f"{prelude}\nfrom buffer_delta.cli import main\nmain({[str(arg) for arg in args]!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS_S, env=environment, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def load(folder: Path) -> tuple[object, ...]:
    return ("load", "--store", folder / "queue", "--table", folder / "events")


def test_should_say_so_when_there_is_no_java(tmp_path: Path) -> None:
    ran = program(*load(tmp_path), environment={"PATH": str(tmp_path)})
    assert ran.code == 1
    started, error = ran.err.splitlines()
    assert started == "starting Spark …", "said off a terminal, too: it takes seconds"
    assert error.startswith("error: Spark needs Java, and there is none")


def test_should_say_so_in_the_demo_before_anything_is_touched(tmp_path: Path) -> None:
    ran = program("demo", "--folder", tmp_path / "demo", environment={"PATH": str(tmp_path)})
    assert ran.code == 1
    assert ran.err.startswith("error: Spark needs Java, and there is none")
    assert not (tmp_path / "demo").exists()


def test_should_say_so_when_java_is_too_old(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    ran = program(*load(tmp_path), environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert ran.code == 1
    assert "is Java 8" in ran.err
    assert "install Java 17 or later" in ran.err
    assert "Traceback" not in ran.err


def test_should_say_how_to_get_spark_when_it_is_not_installed(tmp_path: Path) -> None:
    ran = program(*load(tmp_path), environment={}, prelude="import sys; sys.modules['pyspark'] = None")
    assert ran.code == 1
    assert "pip install 'buffer-delta[spark]'" in ran.err
    assert "Traceback" not in ran.err


# The demo's speed


def test_should_tell_the_speed_of_full_commits_and_of_the_start_by_itself() -> None:
    speed = Speed(start_up_s=12.34)
    trickle = {"first": 60, "last": 62, "rows": 10, "bytes": 1_000, "seconds": 1.0}
    speed.add(trickle)
    assert speed.to_dict() == {"start_up_seconds": 12.3, "rows_per_second": 10, "mb_per_second": 0.0}
    full = {"first": 0, "last": BATCHES_PER_COMMIT - 1, "rows": 90_000, "bytes": 30_000_000, "seconds": 0.5}
    speed.add(full)
    assert (speed.to_dict()["rows_per_second"], speed.to_dict()["mb_per_second"]) == (180_000, 60.0)
    assert Speed().to_dict()["rows_per_second"] == 0


# The demo's folder


def test_should_not_delete_a_folder_that_the_demo_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(Exception, match="will not be deleted"):
        prepare_folder(tmp_path)
    assert (tmp_path / "precious").exists()


def test_should_rebuild_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    prepare_folder(folder)
    (folder / "left over").write_text("of the last run")
    prepare_folder(folder)
    assert [path.name for path in folder.iterdir()] == [MARKER]


@pytest.mark.parametrize("folder", ["/sys/kernel/demo", "/dev/null/demo"])
def test_should_say_what_is_wrong_with_the_folder(buffer_delta: InProcess, folder: str) -> None:
    ran = buffer_delta("demo", "--folder", folder)
    assert ran.code == 1
    assert ran.err.startswith(f"error: cannot write to the folder '{folder}'")
    assert ran.err.count("\n") == 1


def test_should_say_so_when_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as limit:
        done = subprocess.run(
            [sys.executable, "-m", "buffer_delta", "demo", "--folder", tmp_path / "disk/demo"],
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            preexec_fn=limit,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr or "File too large" in done.stderr
    assert done.stderr.startswith("error: a producer failed")
    assert done.stderr.count("\n") == 1


def test_should_call_nothing_exact_that_is_not() -> None:
    fine = {"produced": 3, "duplicates": 0, "missing": 0, "unexpected": 0, "repeated_positions": 0}
    assert is_exact(fine)
    for key in fine:
        assert not is_exact({**fine, key: 1 if key != "produced" else 0})


@pytest.mark.parametrize(
    ("seconds", "master", "options", "is_hinted"),
    [
        (20.0, "local[*]", "", True),
        (20.0, "local", "-Xss4m", True),
        (3.0, "local[*]", "", False),
        (20.0, "local[*]", "-XX:SharedArchiveFile=/x.jsa -Xlog:cds*=off", False),
        (20.0, "spark://host:7077", "", False),
        (20.0, "local-cluster[2,1,512]", "", False),
    ],
)
def test_should_hint_at_what_makes_a_slow_start_faster(
    seconds: float, master: str, options: str, is_hinted: bool
) -> None:
    hint = slow_start_hint(seconds, master, options)
    assert (hint is not None) == is_hinted
    assert hint is None or "buffer-delta prepare" in hint
