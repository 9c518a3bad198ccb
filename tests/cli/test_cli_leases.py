"""`buffer leases`: a queue that workers share, from the command line."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.manifest import Manifest
from buffer.marks import without_mark
from buffer.produce.producer import Producer
from buffer.store.open import open_store
from tests.cli.cli_support import InProcess
from tests.nets import HANGS_S


@pytest.fixture
def store(tmp_path: Path) -> str:
    with Producer.open(store=str(tmp_path)) as producer:
        for entries in ([b"a", b"b"], [b"c"], [b"d"]):
            producer.produce(entries)
            producer.flush()
    return str(tmp_path)


@pytest.fixture
def leases(capfd: pytest.CaptureFixture[str], store: str) -> InProcess:
    run = InProcess(capfd)
    settings = ("visibility_timeout_ms=600000", "max_delivery_attempts=1", "dlq_strategy=block", "dlq=dead/manifest")
    assert run("leases", "configure", "--store", store, *settings).code == 0
    return run


def test_should_lease_ack_and_tell_how_it_stands(leases: InProcess, store: str) -> None:
    taken = leases("leases", "consume", "--store", store, "--max", 2, "--json").json()
    assert [batch["sequence"] for batch in taken["batches"]] == [0, 1]
    assert [base64.b64decode(e["base64"]) for e in taken["batches"][0]["entries"]] == [b"a", b"b"]
    stats = leases("leases", "status", "--store", store, "--json").json()
    assert (stats["depth"], stats["in_flight"], stats["available"]) == (3, 2, 1)
    assert stats["settings"]["dlq"] == "dead/manifest"
    part = ("--entries", "1", "--of", "2")
    assert leases("leases", "ack", "--store", store, taken["lease_id"], 0, *part).code == 0
    assert leases("leases", "nack", "--store", store, taken["lease_id"], 0, "--reason", "no luck").code == 0
    assert leases("leases", "extend", "--store", store, taken["lease_id"], 1).code == 0
    assert leases("leases", "ack", "--store", store, taken["lease_id"], 1).code == 0
    peeked = leases("leases", "peek", "--store", store, "--json").json()
    assert [(b["sequence"], b["phase"], b["owed"]) for b in peeked] == [
        (0, "available", [[0, 0]]),
        (2, "available", None),
    ]
    assert peeked[0]["reason"] == "no luck"
    assert "no luck" in leases("leases", "peek", "--store", store).out


def test_should_refuse_a_lease_that_does_not_hold(leases: InProcess, store: str) -> None:
    ran = leases("leases", "ack", "--store", store, "nobody-1", 0)
    assert ran.code == 2
    assert "not held any more" in ran.err


def test_should_unblock_park_redrive_and_purge(leases: InProcess, store: str) -> None:
    for _ in range(2):
        taken = leases("leases", "consume", "--store", store, "--json").json()
        leases("leases", "nack", "--store", store, taken["lease_id"], taken["batches"][0]["sequence"])
    leases("leases", "consume", "--store", store)
    assert "blocked       2: 0, 1" in leases("leases", "status", "--store", store).out
    assert leases("leases", "unblock", "--store", store, 0, "--attempts", 2).code == 0
    assert leases("leases", "park", "--store", store, 1).code == 0
    assert leases("leases", "redrive", "--store", store, "--json").json() == {"redriven": 1}
    assert leases("leases", "purge", "--store", store, "--yes", "--json").json() == {"purged": 3}
    assert leases("leases", "consume", "--store", store).err == "nothing to deliver\n"


def test_should_change_settings_and_name_a_wrong_one(leases: InProcess, store: str) -> None:
    changed = leases("leases", "configure", "--store", store, "max_in_flight=7", "--json").json()
    assert (changed["max_in_flight"], changed["max_delivery_attempts"]) == (7, 1)
    wrong = leases("leases", "configure", "--store", store, "max_inflight=7")
    assert wrong.code == 2
    assert "did you mean 'max_in_flight'" in wrong.err


def test_should_leave_a_queue_without_a_dead_letter_queue_if_asked(leases: InProcess, store: str) -> None:
    assert leases("leases", "configure", "--store", store, "dlq=", "--json").json()["dlq"] is None
    assert leases("leases", "configure", "--store", store, "--json").json()["max_delivery_attempts"] == 1
    refused = leases("leases", "configure", "--store", store, "dlq_strategy=skip")
    assert (refused.code, "dlq=None is not allowed" in refused.err) == (2, True)


def test_should_only_look_and_never_take_over(leases: InProcess, store: str) -> None:
    consumer = Consumer.new(ConsumerConfig(store=store, gc_enabled=False))
    assert leases("leases", "status", "--store", store).code == 0
    assert leases("leases", "unblock", "--store", store, 0).code == 3
    assert consumer.next_batch() is not None


def test_should_say_whose_the_queue_is(leases: InProcess, store: str) -> None:
    """What workers left is no news of a queue that another reader has."""
    before = leases("leases", "status", "--store", store, "--json")
    assert (before.json()["taken_over"], before.err) == (False, "")
    with Consumer.new(ConsumerConfig(store=store, gc_enabled=False)) as consumer:
        for batch in iter(consumer.next_batch, None):
            consumer.ack(batch.sequence)
    after = leases("leases", "status", "--store", store, "--json")
    assert (after.json()["taken_over"], after.err) == (
        True,
        "note: another reader has this queue; this is how workers left it\n",
    )
    assert "another reader has this queue" in leases("leases", "peek", "--store", store).err
    leases("leases", "consume", "--store", store)
    assert leases("leases", "status", "--store", store, "--json").json()["taken_over"] is False


def test_should_say_that_there_are_no_leases(capfd: pytest.CaptureFixture[str], store: str) -> None:
    ran = InProcess(capfd)("leases", "status", "--store", store)
    assert ran.code == 2
    assert "buffer leases configure" in ran.err


def test_should_ask_before_it_drops_everything(leases: InProcess, store: str) -> None:
    ran = leases("leases", "purge", "--store", store)
    assert ran.code != 0
    assert leases("leases", "status", "--store", store, "--json").json()["depth"] == 3


VERBS = ["status", "peek", "consume", "ack", "nack", "extend", "unblock", "park", "redrive", "purge", "configure"]


@pytest.mark.parametrize("verb", VERBS)
def test_should_teach_by_example_in_the_help_of_every_command(capfd: pytest.CaptureFixture[str], verb: str) -> None:
    ran = InProcess(capfd)("leases", verb, "--help")
    assert ran.code == 0
    assert f"buffer leases {verb} --store ./queue" in " ".join(ran.out.split())


def in_a_process(*arguments: str) -> str:
    program = str(Path(sys.executable).with_name("buffer"))
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=HANGS_S)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_should_park_after_exactly_so_many_deliveries_each_in_another_process(tmp_path: Path) -> None:
    """Nothing but the ledger knows how often: no process sees more than one delivery."""
    store, attempts = str(tmp_path), 3
    with Producer.open(store=store) as producer:
        producer.produce([b"poison"])
    settings = (f"max_delivery_attempts={attempts}", "dlq_strategy=skip", "dlq=dead/manifest")
    in_a_process("leases", "configure", "--store", store, *settings)
    for count in range(1, attempts + 1):
        taken = json.loads(in_a_process("leases", "consume", "--store", store, "--json"))
        (batch,) = taken["batches"]
        assert (batch["sequence"], batch["delivery_count"]) == (0, count)
        in_a_process("leases", "nack", "--store", store, taken["lease_id"], "0", "--reason", f"failed {count} times")
    assert json.loads(in_a_process("leases", "consume", "--store", store, "--json"))["batches"] == []
    (parked,) = Manifest.from_bytes(open_store(store).get("dead/manifest").data)
    (letter,) = (json.loads(item.payload) for item in without_mark(parked.metadata))
    assert (letter["sequence"], letter["count"], letter["reason"]) == (0, attempts, f"failed {attempts} times")
