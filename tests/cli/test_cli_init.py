"""`buffer-delta init` and `check`, without Spark; with it: tests/spark/test_cli_load.py."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.config import ProducerConfig
from buffer.errors import StoreUnusable
from buffer.inspect.probes import check_queue, check_store, try_conditional_writes
from buffer.inspect.status import read_ledger
from buffer.store import Store
from buffer.store.base import Outcome, Version, Won
from buffer.testing import ManualClock
from buffer_delta.cli import cli
from buffer_delta.cli.app import EXIT_CODES
from buffer_delta.cli.guess import guess_format
from buffer_delta.cli.init import document
from buffer_delta.config import LoaderConfig
from tests.cli.cli_support import InProcess, fill
from tests.serve.serve_support import filled


@pytest.fixture
def buffer_delta(capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capfd, cli, "buffer-delta", EXIT_CODES)


class Careless:
    """A server that knows no conditions: it writes whatever comes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        self._store.put(location, data)
        return Won(self._store.head(location).version or "")

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        return self.put_if_absent(location, data)


class TwoFaced(Careless):
    """One that says it has refused, and has written all the same."""

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        outcome = self._store.put_if_absent(location, data)
        self._store.put(location, data)
        return outcome


def test_should_find_stores_out_that_do_not_keep_their_word(any_store: Store) -> None:
    store, clock = any_store, SystemClock()
    assert "one loses" in try_conditional_writes(store, "ingest", clock)
    assert list(store.list("ingest")) == [], "nothing is left"
    for liar in (Careless(store), TwoFaced(store)):
        with pytest.raises(StoreUnusable, match="does not keep its word"):
            try_conditional_writes(liar, "ingest", clock)  # type: ignore[arg-type]
        assert list(store.list("ingest")) == []


def test_should_see_a_clock_that_is_ahead_and_a_queue_that_is_not_there(memory: Store) -> None:
    clock = ManualClock()
    found = check_store(memory, "ingest/manifest", "ingest", clock)
    assert [f.verdict for f in found[:2]] == ["ok", "ok"]
    assert [(f.what, f.verdict) for f in found[2:]] in ([], [("store's clock", "wrong")]), "a clock of 2023"
    assert [f.verdict for f in check_store(memory, "ingest/manifest", "ingest", SystemClock())[2:]] in ([], ["ok"])
    assert check_queue(memory, "ingest/manifest", clock)[1][0].verdict == "note"
    filled(memory, clock, 1)
    assert [f.verdict for f in check_queue(memory, "ingest/manifest", clock)[1]] == ["ok", "ok"]
    behind = ManualClock(start_ms=clock.now_ms() - 3_600_000)
    said = check_queue(memory, "ingest/manifest", behind)[1][-1]
    assert (said.what, said.verdict) == ("clock", "wrong")
    assert "1 h ahead" in said.said


def test_should_guess_the_format_of_the_first_entries() -> None:
    assert guess_format([]) is None
    assert guess_format([b'{"id": 1}', b"{}"]) == "json"
    assert guess_format([b'{"id": 1}', b"not JSON"]) == "text"
    assert guess_format(["grün".encode()]) == "text"
    assert guess_format([b"\x00\x01\xff"]) == "raw"
    assert guess_format([b"[" * 100_000]) == "text", "deep nesting is no reason to fall over"


def test_should_write_a_file_that_both_sides_accept_and_look_at_the_queue(
    buffer_delta: InProcess, tmp_path: Path
) -> None:
    queue = tmp_path / "queue"
    fill(queue, [b'{"id": 1}', b'{"id": 2}'])
    file = tmp_path / "buffer.toml"
    options = ("--table", tmp_path / "events", "--dead-letters", tmp_path / "bad", "--output", file)
    ran = buffer_delta("init", "--store", queue, *options)
    assert ran.code == 0, ran.err
    assert "look like: json" in ran.out
    assert "conditional writes  of two writers one loses" in ran.out
    written = tomllib.loads(file.read_text())
    ProducerConfig.from_dict(written["producer"])
    config = LoaderConfig.from_dict(written["loader"])
    assert (config.store, config.format, config.table) == (str(queue), "json", str(tmp_path / "events"))
    for line in file.read_text().splitlines():  # what is commented out is right, too
        if line.startswith("# ") and " = " in line and "…" not in line:
            table = "producer" if line.startswith(("# flush", "# max_depth")) else "loader"
            kind = {"producer": ProducerConfig, "loader": LoaderConfig}[table]
            kind.from_dict({**written[table], **tomllib.loads(line.removeprefix("# "))})
    assert config.dead_letters == str(tmp_path / "bad")
    again = buffer_delta("init", "--store", queue, *options)
    assert (again.code, "--force" in again.err) == (2, True)
    checked = buffer_delta("check", "--config", file, "--no-spark", "--json")
    assert checked.code == 0
    found = {each["what"]: each for each in checked.json()}
    assert {name: each["verdict"] for name, each in found.items()} == {
        "store": "ok",
        "conditional writes": "ok",
        "store's clock": "ok",
        "queue": "ok",
        "clock": "ok",
        "format": "ok",
    }
    assert "2 entries of 1 batch fit: id int64" in found["format"]["said"]
    from buffer.store import open_store

    assert read_ledger(open_store(str(queue)), "ingest/manifest") is None, "nothing was bound or claimed"


def test_should_say_what_is_wrong_and_end_with_1(buffer_delta: InProcess, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    fill(queue, [b"no JSON", b"either"])
    options = ("--table", tmp_path / "t", "--format", "json", "--schema", "id BIGINT", "--no-spark")
    ran = buffer_delta("check", "--store", queue, *options)
    assert ran.code == 1
    (line,) = [line for line in ran.out.splitlines() if line.startswith("WRONG")]
    assert "2 of 2 entries do not parse" in line


def test_should_not_ask_without_a_terminal_and_keep_keys_out_of_the_file(
    buffer_delta: InProcess, tmp_path: Path
) -> None:
    file = tmp_path / "buffer.toml"
    ran = buffer_delta("init", "--table", "t", "--output", file)
    assert (ran.code, "pass --store" in ran.err) == (2, True)
    keys = ("--store-option", "secret_access_key=hunter2", "--store-option", "region=eu-central-1")
    store = ("--store", "s3://bucket/q", "--store-option", "endpoint=http://127.0.0.1:9", *keys)
    quick = ("--store-option", "client_options.allow_http=true")
    retry = ("--store-option", "retry_config.max_retries=0")
    ran = buffer_delta("init", *store, *quick, *retry, "--table", "t", "--output", file, "--no-check")
    assert ran.code == 0, ran.err
    text = file.read_text()
    assert "hunter2" not in text + ran.out + ran.err
    written = tomllib.loads(text)["loader"]
    assert written["store_options"]["region"] == "eu-central-1"
    assert written["store_options"]["client_options"] == {"allow_http": True}


def test_should_write_no_file_with_a_key_in_an_address(buffer_delta: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "buffer.toml"
    endpoint = ("--store-option", "endpoint=http://user:hunter2@127.0.0.1:9")
    ran = buffer_delta("init", "--store", "s3://b/q", *endpoint, "--table", "t", "--output", file, "--no-check")
    assert (ran.code, file.exists()) == (2, False)
    assert "the store option endpoint is not an endpoint" in ran.err
    assert "hunter2" not in ran.out + ran.err


def test_should_write_any_character_as_toml() -> None:
    strange = 'a"b\\c\n\x7f\u2028[loader]'
    settings = {"store": strange, "store_options": {"a b": [1, True]}, "table": strange, "format": {"type": "raw"}}
    written = tomllib.loads(document(settings, {"gc_enabled": False}))
    assert written["loader"]["table"] == written["producer"]["store"] == strange
    assert written["loader"]["store_options"] == {"a b": [1, True]}
    assert written["loader"]["gc_enabled"] is False
    assert json.dumps(written)


def test_should_write_each_setting_once_and_no_key_however_they_are_given(
    buffer_delta: InProcess, tmp_path: Path
) -> None:
    queue, file = tmp_path / "queue", tmp_path / "buffer.toml"
    fill(queue, [b"a"])
    sets = {
        "table": json.dumps(str(tmp_path / "events")),
        "dead_letters": json.dumps(str(tmp_path / "bad")),
        "format": '{ type = "text" }',
        "store_options": '{ secret_access_key = "sEcReT", region = "eu-1", '
        'client_options = { allow_http = true, default_headers = { authorization = "sEcReT" } } }',
        "table_options": '{ "fs.s3a.secret.key" = "sEcReT" }',
        "commit_interval_s": "5",
    }
    given = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    ran = buffer_delta("init", "--store", queue, "--output", file, "--no-check", *given)
    assert ran.code == 0, ran.err
    text = file.read_text()
    written = tomllib.loads(text)["loader"]
    assert "sEcReT" not in text + ran.out + ran.err
    for key in ("secret_access_key", "fs.s3a.secret.key", "client_options.default_headers"):
        assert key in ran.err, key
    assert (written["table"], written["dead_letters"]) == (str(tmp_path / "events"), str(tmp_path / "bad"))
    assert (written["format"], written["commit_interval_s"]) == ({"type": "text"}, 5)
    assert written["store_options"] == {"region": "eu-1", "client_options": {"allow_http": True}}


def test_should_refuse_what_init_would_not_heed_and_no_load_would_take(buffer_delta: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "buffer.toml"
    file.write_text('[loader]\nstore = "./q"\n')
    options = ("--table", tmp_path / "t", "--output", tmp_path / "new.toml", "--no-check")
    ran = buffer_delta("init", "--config", file, "--store", tmp_path, *options)
    assert (ran.code, "--config" in ran.err) == (2, True)
    ran = buffer_delta("init", "--store", "memory://x", *options)
    assert (ran.code, "one process" in ran.err.replace("\n", " ")) == (2, True)
    assert not (tmp_path / "new.toml").exists()
