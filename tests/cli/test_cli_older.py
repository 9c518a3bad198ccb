"""The command line on a queue of the older format: `migrate`, and what `status`, `tail` and `verify` say about one."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from buffer.legacy import Collector, Ingestor, KeyValueEntry
from buffer.store import open_store
from tests.cli.cli_support import InProcess, Program
from tests.nets import HANGS_S

OLDER = "'ingest/manifest.json' is a queue of the older format, with two manifests\n"


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capfd)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Three batches of two pairs."""
    folder = tmp_path / "old"
    for number in range(3):
        ingest(folder, f"k{number}a", f"k{number}b")
    return folder


def ingest(folder: Path, *keys: str) -> None:
    with Ingestor.open(store=str(folder), flush_interval_ms=1) as ingestor:
        pairs = [KeyValueEntry(key.encode(), f"value of {key}".encode()) for key in keys]
        ingestor.ingest(pairs).await_durable(timeout=HANGS_S)


def damage(folder: Path, index: int) -> str:
    store = open_store(str(folder))
    location = sorted_locations(folder)[index]
    store.put(location, b"[nonsense")
    return location


def sorted_locations(folder: Path) -> list[str]:
    with Collector.open(store=str(folder)) as collector:
        return list(collector._claims._both(collector._claims._consumer.read())[1].pending)


def keys(cli: InProcess, new: Path) -> list[str]:
    lines = cli("tail", "--store", new, "--from", 0, "--json").out.splitlines()
    entries = [base64.b64decode(json.loads(line)["value_base64"]) for line in lines]
    return [entry[5 : 5 + int.from_bytes(entry[1:5], "little")].decode() for entry in entries]


def test_should_say_what_such_a_queue_is(cli: InProcess, old: Path) -> None:
    ran = cli("status", "--store", old)
    assert ran.code == 0
    assert ran.err == OLDER
    assert "the older one, with two manifests" in ran.out
    assert "3 batches" in ran.out
    with Collector.open(store=str(old)) as collector:
        assert collector.next_batch() is not None
        found = cli("status", "--store", old, "--legacy", "--json")
    assert found.err == "", "it was told"
    assert found.json() | {"store": ""} == {
        "format": "older",
        "store": "",
        "manifest": "ingest/manifest.json",
        "consumer_manifest": "ingest/manifest.consumer.json",
        "length": 3,
        "free": 2,
        "claimed": 1,
        "stale": 0,
        "moving": 0,
        "parked": 0,
        "done": 0,
        "migration": None,
    }


def test_should_know_one_by_its_content_wherever_its_manifest_is(cli: InProcess, tmp_path: Path) -> None:
    with Ingestor.open(store=str(tmp_path), manifest_path="a/queue", flush_interval_ms=1) as ingestor:
        ingestor.ingest([KeyValueEntry(b"k", b"v")]).await_durable(timeout=HANGS_S)
    assert cli("status", "--store", tmp_path, "--manifest", "a/queue", "--json").json()["format"] == "older"


def test_should_still_say_that_there_is_no_queue(cli: InProcess, tmp_path: Path) -> None:
    ran = cli("status", "--store", tmp_path)
    assert ran.code == 1
    assert "there is no queue yet" in ran.err
    ran = cli("status", "--store", tmp_path, "--legacy")
    assert "has no queue of the older format at 'ingest/manifest.json'" in ran.err


def test_should_print_the_last_pairs(cli: InProcess, old: Path) -> None:
    assert cli("tail", "--store", old, "-n", 3).out == ("k1b\tvalue of k1b\nk2a\tvalue of k2a\nk2b\tvalue of k2b\n")
    line = cli("tail", "--store", old, "-n", 1, "--json").json()
    assert (line["index"], line["key"], line["value"]) == (1, "k2b", "value of k2b")
    assert base64.b64decode(line["key_base64"]) == b"k2b"


def test_should_follow_such_a_queue(old: Path) -> None:
    with Program("tail", "--store", old, "-n", 1, "-f", "--interval-s", 0.01) as running:
        assert running.stdout.readline() == b"k2b\tvalue of k2b\n"
        ingest(old, "later")
        assert running.stdout.readline() == b"later\tvalue of later\n"


def test_should_verify_such_a_queue(cli: InProcess, old: Path) -> None:
    ran = cli("verify", "--store", old)
    assert (ran.code, ran.out) == (0, "3 batches, all fine: 6 pairs, 90 B of keys and values\n")
    location = damage(old, 1)
    ran = cli("verify", "--store", old, "--json")
    assert ran.code == 1
    (bad,) = ran.json()["damaged"]
    assert (bad["location"], bad["problem"], bad["parked"]) == (location, "corrupt", False)
    assert cli("tail", "--store", old).code == 1


def test_should_migrate_and_say_so(cli: InProcess, old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    dry = cli("migrate", old, new, "--dry-run")
    assert (dry.code, dry.out) == (0, "would move  3 batches, 6 pairs, 90 B\n")
    assert not new.exists(), "nothing was changed"
    assert cli("status", "--store", old, "--json").json()["migration"] is None

    ran = cli("migrate", old, new, "--window", 2)
    assert ran.code == 0
    assert ran.err.splitlines() == [
        "moved 2 batches, 4 pairs; 1 batch left",
        "moved 3 batches, 6 pairs; 0 batches left",
    ]
    assert "moved        3 batches, 6 pairs" in ran.out
    assert keys(cli, new) == ["k0a", "k0b", "k1a", "k1b", "k2a", "k2b"]
    ingest(old, "late")
    again = cli("migrate", old, new, "--json")
    found: dict[str, Any] = again.json()
    assert again.err.startswith("going on after 3 batches, 6 pairs\n")
    assert [found[name] for name in ("batches", "pairs", "all_batches", "all_pairs", "left", "parked")] == [
        1,
        1,
        4,
        7,
        0,
        [],
    ]
    status = cli("status", "--store", old, "--json").json()
    assert status["migration"] == {
        "target": found["target"],
        "client_id": found["client_id"],
        "batches": 4,
        "pairs": 7,
        "under_way": 0,
    }


def test_should_end_with_1_and_name_what_cannot_be_moved(cli: InProcess, old: Path, tmp_path: Path) -> None:
    location = damage(old, 1)
    assert cli("migrate", old, tmp_path / "new", "--dry-run").code == 1
    ran = cli("migrate", old, tmp_path / "new")
    assert ran.code == 1
    assert location in ran.out
    assert "CorruptBatch" in ran.out
    assert keys(cli, tmp_path / "new") == ["k0a", "k0b", "k2a", "k2b"]
    assert cli("status", "--store", old, "--json").json()["parked"] == 1


def test_should_follow_writers_until_it_is_interrupted(cli: InProcess, old: Path, tmp_path: Path) -> None:
    with Program("migrate", old, tmp_path / "new", "--follow", "--interval-s", 0.01) as running:
        assert running.stderr.readline() == b"moved 3 batches, 6 pairs; 0 batches left\n"
        ingest(old, "late")
        assert running.stderr.readline() == b"moved 4 batches, 7 pairs; 0 batches left\n"
        running.signal(signal.SIGINT)
        assert running.wait() == 130
    assert keys(cli, tmp_path / "new")[-1] == "late"


def test_should_take_over_what_a_dead_collector_has(cli: InProcess, old: Path, tmp_path: Path) -> None:
    collector = Collector.open(store=str(old))
    assert collector.next_batch() is not None
    collector.close()
    ran = cli("migrate", old, tmp_path / "new", "--heartbeat-timeout-s", 0.5, "--interval-s", 0.01)
    assert ran.code == 0
    assert len(keys(cli, tmp_path / "new")) == 6


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["migrate", "nowhere", "new"], 1, "has no queue of the older format at 'ingest/manifest.json'"),
        (["migrate", "{old}"], 2, "Missing argument 'NEW'"),
        (["migrate", "{old}", "memory://"], 2, "a memory store lives in one process"),
        (["migrate", "{old}", "{new}", "--set", "colour=red"], 2, "colour"),
    ],
)
def test_should_refuse_what_cannot_be_meant(
    cli: InProcess, old: Path, tmp_path: Path, args: list[str], code: int, says: str
) -> None:
    places = {"old": str(old), "new": str(tmp_path / "new"), "nowhere": str(tmp_path / "nowhere")}
    given = [arg.format(**places) if "{" in arg else str(tmp_path / arg) if arg == "nowhere" else arg for arg in args]
    ran = cli(*given)
    assert ran.code == code
    assert says in ran.err


def test_should_give_the_old_queue_back(cli: InProcess, old: Path, tmp_path: Path) -> None:
    ran = cli("migrate", old, tmp_path / "new", "--give-back")
    assert (ran.code, "there is nothing to give back" in ran.err) == (2, True)
    assert not (tmp_path / "new").exists()
    cli("migrate", old, tmp_path / "new")
    ran = cli("migrate", old, tmp_path / "new", "--give-back", "--json")
    assert ran.json() == {"given_back": 0}
