"""Every golden file of the older format is decoded, or refused with a clear error, as its verdict says."""

from __future__ import annotations

from typing import Any

import pytest

from buffer.errors import CorruptBatch, CorruptData, CorruptManifest
from buffer.legacy.format import (
    ConsumerManifest,
    ProducerManifest,
    consumer_manifest_path,
    decode_batch,
    decode_consumer_manifest,
    decode_producer_manifest,
    encode_batch,
    encode_consumer_manifest,
    encode_producer_manifest,
    parked_path,
)
from tests.legacy.golden import FILES, GOLDEN, name_of, pairs_of, read

DECODERS = {
    "batch": (decode_batch, CorruptBatch),
    "producer manifest": (decode_producer_manifest, CorruptManifest),
    "consumer manifest": (decode_consumer_manifest, CorruptManifest),
}
ACCEPTED = [file for file in FILES if file["want"] == "accept"]
REJECTED = [file for file in FILES if file["want"] == "reject"]
BATCHES = [file for file in ACCEPTED if file["expect"]["object"] == "batch"]
MANIFESTS = [file for file in ACCEPTED if file["expect"]["object"] != "batch"]


def test_should_know_every_golden_file() -> None:
    present = {path for path in GOLDEN.rglob("*") if path.is_file()} - {GOLDEN / "index.json"}
    assert {GOLDEN / file["file"] for file in FILES} == present
    assert {file["expect"]["object"] for file in REJECTED} == set(DECODERS)


@pytest.mark.parametrize("file", REJECTED, ids=name_of)
def test_should_refuse_what_the_implementation_of_that_time_refused(file: dict[str, Any]) -> None:
    decode, error = DECODERS[file["expect"]["object"]]
    with pytest.raises(
        error, match=r"the (batch|producer manifest|consumer manifest) at 'x' is damaged: \w+"
    ) as caught:
        decode(read(file), "x")
    assert isinstance(caught.value, CorruptData)
    assert caught.value.location == "x"


@pytest.mark.parametrize("file", BATCHES, ids=name_of)
def test_should_decode_batches(file: dict[str, Any]) -> None:
    expect = file["expect"]
    entries = expect["entries"] if "entries" in expect else expect["next_batch"]["ok"]["entries"]
    assert decode_batch(read(file)) == pairs_of(entries)


@pytest.mark.parametrize("file", [file for file in BATCHES if "damaged" not in file["file"]], ids=name_of)
def test_should_write_batches_byte_for_byte(file: dict[str, Any]) -> None:
    assert encode_batch(pairs_of(file["expect"]["entries"])) == read(file)


@pytest.mark.parametrize("file", MANIFESTS, ids=name_of)
def test_should_decode_manifests(file: dict[str, Any]) -> None:
    decode, _ = DECODERS[file["expect"]["object"]]
    manifest = decode(read(file))
    if "json" in file["expect"]:
        expected = file["expect"]["json"]
        if isinstance(manifest, ProducerManifest):
            assert manifest.pending == tuple(expected["pending"])
        else:
            assert manifest == ConsumerManifest(expected["claimed"], tuple(expected["done"]))


@pytest.mark.parametrize("file", [file for file in MANIFESTS if "damaged" not in file["file"]], ids=name_of)
def test_should_write_manifests_byte_for_byte(file: dict[str, Any]) -> None:
    data = read(file)
    if file["expect"]["object"] == "producer manifest":
        assert encode_producer_manifest(decode_producer_manifest(data)) == data
    else:
        assert encode_consumer_manifest(decode_consumer_manifest(data)) == data


PATHS = {
    (file["expect"]["state"]["producer_manifest_key"], file["expect"]["state"]["consumer_manifest_key"])
    for file in FILES
    if "consumer_manifest_key" in file["expect"].get("state", {})
}


@pytest.mark.parametrize(("producer", "consumer"), sorted(PATHS))
def test_should_name_the_consumer_manifest_as_it_was_named(producer: str, consumer: str) -> None:
    assert consumer_manifest_path(producer) == consumer


def test_should_name_the_parked_file_by_the_same_rule() -> None:
    assert parked_path("ingest/manifest.json") == "ingest/manifest.parked.json"
    assert parked_path("a.b/manifest") == "a.parked.b/manifest"
    assert parked_path("manifest") == "manifest.parked"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'[{"key":"","value":"","x":' + b"9" * 5000 + b"}]", "no JSON"),
        (b'[{"key":"\xff","value":""}]', "key of entry 0"),
        ('[{"key":"é","value":""}]'.encode(), "key of entry 0"),
        (b'[{"key":"YQ==","value":true}]', "value of entry 0 is a truth value"),
        (b"[5]", "entry 0 must be an object, not a number"),
    ],
)
def test_should_refuse_damaged_batches_beyond_the_golden_ones(text: bytes, says: str) -> None:
    with pytest.raises(CorruptBatch, match=says):
        decode_batch(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"pending":["\\ud800"]}', "surrogate"),
        (b'{"pending":["\xff"]}', "UTF-8"),
        (b'{"pending":[["a"]]}', "a list and not a location"),
        (b'{"pending":{"a":1}}', "an object, not a list"),
    ],
)
def test_should_refuse_damaged_producer_manifests_beyond_the_golden_ones(text: bytes, says: str) -> None:
    with pytest.raises(CorruptManifest, match=says):
        decode_producer_manifest(text)


def test_should_refuse_a_truth_value_as_the_time_of_a_claim() -> None:
    with pytest.raises(CorruptManifest, match="the time True"):
        decode_consumer_manifest(b'{"claimed":{"a":true},"done":[]}')


def test_should_write_letters_beyond_ascii_as_they_are() -> None:
    manifest = ProducerManifest(('ünï/"q"\\\x01',))
    data = encode_producer_manifest(manifest)
    assert data == '{"pending":["ünï/\\"q\\"\\\\\\u0001"]}'.encode()
    assert decode_producer_manifest(data) == manifest
