"""Very many of what takes almost no bytes: empty entries, items of metadata, names. Memory is bounded all the same."""

from __future__ import annotations

import pytest

from buffer.manifest import Manifest, PackedMetadata
from buffer.model import BatchDescriptor
from buffer_delta.decode.fetching import Group
from buffer_delta.decode.rows import CHUNK_BYTES, ROWS_PER_ARROW_BATCH
from buffer_delta.formats import JsonFormat, RawFormat
from buffer_delta.formats.base import Format
from tests.decode.decode_support import Batches, decoder
from tests.formats.format_support import binary, peak_bytes

MIB = 1 << 20


def rows_of(batches: Batches, descriptor: BatchDescriptor, form: Format) -> tuple[int, int]:
    """Rows, and bad entries; each record batch is forgotten as soon as it is counted."""
    rows = dead = 0
    for batch in decoder(form, dead_letters=True).rows(batches.handle, Group([descriptor])):
        lost = len(batch) - batch.column(batch.num_columns - 1).null_count
        rows, dead = rows + len(batch) - lost, dead + lost
    return rows, dead


def test_should_take_bounded_memory_for_two_million_empty_entries(batches: Batches) -> None:
    """They are 274 bytes in the store, 8 MB of lengths once expanded."""
    descriptor = batches.put(1, [b""] * 2_000_000, compression="zstd")
    assert batches.store.head(descriptor.location).size < 1000
    found: list[tuple[int, int]] = []
    peak = peak_bytes(lambda: found.append(rows_of(batches, descriptor, RawFormat())))
    assert found == [(2_000_000, 0)]
    assert peak < 96 * MIB


@pytest.mark.thorough
def test_should_take_bounded_memory_for_very_many_bad_entries(batches: Batches) -> None:
    descriptor = batches.put(1, [b""] * 400_000, compression="zstd")
    found: list[tuple[int, int]] = []
    peak = peak_bytes(lambda: found.append(rows_of(batches, descriptor, JsonFormat("a INT"))))
    assert found == [(0, 400_000)]
    assert peak < 96 * MIB, "of as many as are parsed at once"


def test_should_take_bounded_memory_for_very_many_items_of_metadata(batches: Batches) -> None:
    items = 200_000
    plain = batches.put(1, [b"x"] * 10)
    packed = PackedMetadata.pack(range(items), [1] * items)
    manifest = Manifest.from_bytes(Manifest.empty().append_all([(plain.location, packed)]).to_bytes())
    found: list[tuple[int, int]] = []

    def load() -> None:
        (descriptor,) = manifest
        found.append(rows_of(batches, descriptor, RawFormat()))

    peak = peak_bytes(load)
    assert found == [(10, 0)]
    assert peak < 400 * items


@pytest.mark.thorough
def test_should_grow_no_faster_than_the_bytes_of_unique_keys() -> None:
    """1 to 16 MiB of records, each with a name of its own."""
    form = JsonFormat(max_columns=50)

    def load(size: int) -> int:
        entries = binary(*(b'{"id":%d,"k%010d":%d}' % (n, n, n) for n in range(size // 32)))

        def work() -> None:
            settled = form.with_schema(form.discover(entries))
            for _, piece in settled.pieces(entries, CHUNK_BYTES, ROWS_PER_ARROW_BATCH):
                settled.parse(piece)

        return peak_bytes(work)

    load(MIB // 16)  # what is made once
    peaks = {size: load(size * MIB) for size in (1, 16)}
    for size, peak in peaks.items():
        assert peak < 150 * size * MIB, peaks
    assert peaks[16] < 20 * peaks[1], peaks
