"""Batches written by the reference implementation, and damaged ones: each is read or refused as its entry says."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import zstandard

from buffer.codec.batch import batch_info, decode_batch, decode_batch_arrow, encode_batch
from buffer.errors import CorruptBatch

GOLDEN = Path(__file__).parents[1] / "golden"
BATCHES: list[dict[str, Any]] = [
    file for file in json.loads((GOLDEN / "index.json").read_text())["files"] if file["kind"] == "batch"
]
ACCEPTED = [file for file in BATCHES if file["want"] == "accept"]
REJECTED = [file for file in BATCHES if file["want"] == "reject"]


def name(file: dict[str, Any]) -> str:
    return str(file["file"])


def load(file: dict[str, Any]) -> bytes:
    return (GOLDEN / file["file"]).read_bytes()


def digest(entries: list[bytes]) -> str:
    return hashlib.sha256(b"".join(struct.pack("<I", len(e)) + e for e in entries)).hexdigest()


def test_should_know_every_golden_batch() -> None:
    listed = {GOLDEN / file["file"] for file in BATCHES}
    present = {*GOLDEN.rglob("*.batch"), *GOLDEN.glob("verdict/batch_*")}
    assert listed == present
    assert ACCEPTED
    assert REJECTED


@pytest.mark.parametrize("file", ACCEPTED, ids=name)
def test_should_decode_what_the_reference_accepts(file: dict[str, Any]) -> None:
    data, expect = load(file), file["expect"]

    entries = decode_batch(data)

    assert len(entries) == expect["count"] == batch_info(data).record_count
    assert digest(entries) == expect["sha256"]
    assert decode_batch_arrow(data).to_pylist() == entries
    if "compression" in expect:
        assert batch_info(data).compression == expect["compression"]
    if "entries_base64" in expect:
        assert entries == [base64.b64decode(entry) for entry in expect["entries_base64"]]


@pytest.mark.parametrize("file", REJECTED, ids=name)
@pytest.mark.parametrize("decode", [decode_batch, decode_batch_arrow])
def test_should_refuse_damaged_batches(file: dict[str, Any], decode: Any) -> None:
    with pytest.raises(CorruptBatch):
        decode(load(file))


@pytest.mark.parametrize("file", ACCEPTED, ids=name)
def test_should_write_the_very_bytes_of_the_reference(file: dict[str, Any]) -> None:
    data = load(file)
    entries, array = decode_batch(data), decode_batch_arrow(data)
    compression = batch_info(data).compression
    for source in (entries, array):
        encoded = encode_batch(source, compression)
        if compression == "none":
            assert encoded == data
        else:
            assert decode_batch(encoded) == entries
            assert batch_info(encoded) == batch_info(data)


@pytest.mark.parametrize("file", [file for file in ACCEPTED if name(file).startswith("batch/")], ids=name)
def test_should_write_zstd_as_one_frame_that_tells_its_size(file: dict[str, Any]) -> None:
    entries = decode_batch(load(file))
    block = b"".join(struct.pack("<I", len(e)) + e for e in entries)

    frame = encode_batch(entries, "zstd")[:-7]

    assert zstandard.get_frame_parameters(frame).content_size == len(block)
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    assert decompressor.decompress(frame) == block
    assert decompressor.eof
    assert decompressor.unused_data == b""
