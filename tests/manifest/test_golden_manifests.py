"""Manifests written by the reference implementation, and damaged ones: read, refused and continued as it does.

The files are frozen. A test that fails here is fixed in the code, never in the data.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from buffer.errors import CorruptManifest
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, Metadata

GOLDEN = Path(__file__).parents[1] / "golden"
INDEX = json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))
FILES = [item for item in INDEX["files"] if item["kind"] == "manifest"]
ACCEPTED = [item for item in FILES if item["want"] == "accept"]
REJECTED = [item for item in FILES if item["want"] == "reject"]


def by_file(items: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("item", items, ids=lambda item: item["file"])


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def as_manifest_dump(manifest: Manifest) -> dict[str, Any]:
    return {
        "version": 1,
        "epoch": manifest.epoch,
        "next_sequence": manifest.next_sequence,
        "entries": [
            {
                "sequence": entry.sequence,
                "location": entry.location,
                "metadata": [
                    {
                        "start_index": m.start_index,
                        "ingestion_time_ms": m.ingestion_time_ms,
                        "payload_base64": base64.b64encode(m.payload).decode(),
                    }
                    for m in entry.metadata
                ],
            }
            for entry in manifest
        ],
    }


def written_again(manifest: Manifest) -> Manifest:
    """The same queue built through our own encoder, entry by entry."""
    start = Manifest.from_bytes(
        (0).to_bytes(4, "little")
        + manifest.first_sequence.to_bytes(8, "little")
        + manifest.epoch.to_bytes(8, "little")
        + b"\x01\x00"
    )
    return start.append_all([(entry.location, entry.metadata) for entry in manifest])


def test_should_find_every_golden_manifest() -> None:
    assert (len(ACCEPTED), len(REJECTED)) == (15, 12)
    on_disk = {p.relative_to(GOLDEN).as_posix() for p in GOLDEN.glob("manifest/*") if p.is_file()}
    on_disk |= {p.relative_to(GOLDEN).as_posix() for p in GOLDEN.glob("verdict/manifest_*")}
    assert {item["file"] for item in FILES} == on_disk


@by_file(ACCEPTED)
def test_should_decode_golden_manifest(item: dict[str, Any]) -> None:
    manifest = Manifest.from_bytes(golden(item["file"]))
    assert as_manifest_dump(manifest) == item["expect"]
    assert len(manifest) == len(item["expect"]["entries"])


@by_file(ACCEPTED)
def test_should_write_golden_manifest_byte_for_byte(item: dict[str, Any]) -> None:
    data = golden(item["file"])
    manifest = Manifest.from_bytes(data)
    assert manifest.to_bytes() == data
    assert written_again(manifest).to_bytes() == data


@by_file(ACCEPTED)
def test_should_read_each_golden_entry_alone(item: dict[str, Any]) -> None:
    entries = list(Manifest.from_bytes(golden(item["file"])))
    for entry in entries:
        manifest = Manifest.from_bytes(golden(item["file"]))
        assert manifest.read(entry.sequence) == entry
        assert list(manifest.entries_from(entry.sequence)) == entries[entries.index(entry) :]


@by_file(REJECTED)
def test_should_reject_golden_manifest(item: dict[str, Any]) -> None:
    data = golden(item["file"])
    with pytest.raises(CorruptManifest):
        list(Manifest.from_bytes(data))


class TestHistory:
    """One queue's life, as the reference implementation wrote it down: our operations make the same bytes."""

    def test_should_claim_on_an_empty_store(self) -> None:
        assert Manifest.empty().claim().to_bytes() == golden("manifest/empty_after_init")

    def test_should_build_one_entry_from_nothing(self) -> None:
        item = Metadata(0, 1_700_000_000_000, b'{"topic":"events"}')
        manifest = Manifest.empty().append("ingest/01M7JW6V2BKF04N3ANEAY9KR1J.batch", [item])
        assert manifest.to_bytes() == golden("manifest/one_entry")

    def test_should_claim_twice(self) -> None:
        claimed = Manifest.from_bytes(golden("manifest/three_entries")).claim()
        assert claimed.to_bytes() == golden("manifest/epoch_1")
        assert claimed.claim().to_bytes() == golden("manifest/epoch_2")

    def test_should_dequeue_append_and_dequeue_all(self) -> None:
        dequeued = Manifest.from_bytes(golden("manifest/epoch_2")).dequeue(1)
        assert dequeued.to_bytes() == golden("manifest/dequeued_through_1")
        fourth = Manifest.from_bytes(golden("manifest/appended_after_dequeue")).read(3)
        assert fourth is not None
        appended = dequeued.append(fourth.location, fourth.metadata)
        assert appended.to_bytes() == golden("manifest/appended_after_dequeue")
        assert appended.dequeue(3).to_bytes() == golden("manifest/all_dequeued")

    def test_should_write_extremes(self) -> None:
        extremes = list(Manifest.from_bytes(golden("manifest/direct_extremes")))
        manifest = Manifest.empty().append_all([(e.location, e.metadata) for e in extremes])
        assert manifest.to_bytes() == golden("manifest/direct_extremes")

    def test_should_skip_the_reserved_epoch(self) -> None:
        data = golden("manifest/direct_extremes")
        last = Manifest.from_bytes(data[:-10] + (2**64 - 2).to_bytes(8, "little") + data[-2:])
        assert last.epoch == 2**64 - 2
        assert last.claim().to_bytes() == golden("manifest/direct_epoch_wrapped")

    def test_should_write_the_longest_location(self) -> None:
        (entry,) = Manifest.from_bytes(golden("manifest/direct_location_65535"))
        assert len(entry.location.encode()) == 65_535
        assert Manifest.empty().append(entry.location, entry.metadata).to_bytes() == golden(
            "manifest/direct_location_65535"
        )

    def test_should_name_the_batches_that_lie_beside_it(self) -> None:
        data = GOLDEN / "manifest" / "data"
        entries: list[BatchDescriptor] = list(Manifest.from_bytes(golden("manifest/three_entries")))
        assert [(data / entry.location).is_file() for entry in entries] == [True] * 3
