"""The batch codec on good input: what it writes, and that it reads back what it wrote."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffer.codec import batch
from buffer.codec import entries as _entries
from buffer.codec import parquet_page as _parquet_page
from buffer.codec.batch import (
    BatchInfo,
    batch_info,
    decode_batch,
    decode_batch_arrow,
    encode_batch,
    encode_batch_parts,
)
from buffer.errors import CorruptBatch
from tests.codec.batch_support import (
    COMPRESSIONS,
    KINDS,
    MIB,
    always_loops,
    always_pages,
    block_of,
    footer,
    sample,
    traced_peak,
)
from tests.nets import HANGS_S

# ---------------------------------------------------------------------------------------------------- encoding


@KINDS
def test_should_write_the_format_byte_for_byte(kind: str) -> None:
    entries = sample(kind)
    expected = block_of(entries) + footer(0, len(entries))

    assert encode_batch(entries) == expected
    assert encode_batch(pa.array(entries, pa.binary())) == expected
    assert encode_batch(pa.array(entries, pa.large_binary())) == expected
    assert encode_batch_parts([entries]) == expected
    assert encode_batch_parts([pa.array(entries, pa.binary())]) == expected


@KINDS
@COMPRESSIONS
def test_should_decode_what_it_encoded(kind: str, compression: str) -> None:
    entries = sample(kind)
    data = encode_batch(entries, compression)

    assert decode_batch(data) == entries
    array = decode_batch_arrow(data)
    assert array.type == pa.binary()
    assert array.null_count == 0
    array.validate(full=True)
    assert array.to_pylist() == entries
    assert encode_batch_parts([array], compression) == encode_batch(array, compression) == data
    assert batch_info(data) == batch_info(data[-7:]) == BatchInfo(compression, len(entries), 1)


@pytest.mark.parametrize("make", [bytearray, memoryview, pa.py_buffer])
@pytest.mark.parametrize("kind", ["few", "small", "large"])
@COMPRESSIONS
def test_should_decode_any_bytes_like_object(make: Callable[[bytes], Any], kind: str, compression: str) -> None:
    entries = sample(kind)
    data = make(encode_batch(entries, compression))
    assert decode_batch(data) == entries
    assert all(type(entry) is bytes for entry in decode_batch(data))
    assert decode_batch_arrow(data).to_pylist() == entries


def test_should_take_the_page_road_with_this_pyarrow() -> None:
    """The codec falls back to a loop when Arrow's writer behaves otherwise; that must not go unnoticed."""
    assert _parquet_page._writer_works()
    pieces: list[bytes] = []
    array = pa.array([b"0123456789abcdef"] * 50_000)
    _parquet_page.write_pages(array, pieces.append)
    assert len(pieces) > 2
    assert b"".join(pieces) == block_of(array.to_pylist())


def test_should_notice_a_writer_that_makes_other_calls() -> None:
    sink = _parquet_page._PageSink([10], lambda _: None)
    sink.write(b"PAR1")
    sink.write(b"header")
    with pytest.raises(_parquet_page._UnexpectedWrite, match="9 bytes, not 10"):
        sink.write(b"9 bytes..")
    with pytest.raises(_parquet_page._UnexpectedWrite, match="0 pages came, not 1"):
        sink.check_complete()


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (1, 1), (1, 2), (17, 40), (100, 2900), (2999, 3000)])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_should_encode_only_the_slice_of_a_sliced_array(start: int, stop: int, kind: pa.DataType) -> None:
    entries = sample("small")
    array = pa.array(entries, kind)[start:stop]
    assert encode_batch(array) == encode_batch(entries[start:stop])
    assert decode_batch(encode_batch(array, "zstd")) == entries[start:stop]


def test_should_encode_a_slice_of_large_records() -> None:
    entries = sample("large")
    assert encode_batch(pa.array(entries)[90:97]) == encode_batch(entries[90:97])


@pytest.mark.parametrize(
    "values", [pa.array(["text"]), pa.array([1, 2]), pa.array([b"ab"], pa.binary(2)), pa.array([b"a", None])]
)
def test_should_rely_on_arrays_of_bytes_without_nulls(values: pa.Array) -> None:
    """Users meet the check of `produce`; this one finds a caller of ours that forgot it."""
    with pytest.raises(AssertionError):
        encode_batch(values)


@pytest.mark.parametrize("compression", ["", "lz4", "ZSTD", None, 1])
def test_should_rely_on_a_known_compression(compression: Any) -> None:
    with pytest.raises(AssertionError):
        encode_batch([b"a"], compression)


def test_should_not_let_anyone_change_what_it_wrote() -> None:
    for compression in ("none", "zstd"):
        assert encode_batch_parts([[b"a"]], compression).readonly


@COMPRESSIONS
def test_should_encode_parts_of_any_kind_in_order(compression: str) -> None:
    entries = sample("medium")
    array = pa.array(entries)
    parts: list[Any] = [
        entries[:3],
        entries[3:4],
        array[4:50],
        array[50:51],
        [],
        array[51:300],
    ]
    parts += [array[300:301].cast(pa.large_binary()), array[301:700], entries[700:702], entries[702:]]

    data = encode_batch_parts(iter(parts), compression)

    assert data == encode_batch(entries, compression)
    assert encode_batch_parts([], compression) == encode_batch([], compression)


def test_should_put_thousands_of_small_parts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run costs several calls into Arrow: one for every part would take twenty times as long."""
    entries = sample("many pages")
    array = pa.array(entries)
    lists = [entries[i : i + 3] for i in range(0, len(entries), 3)]
    arrays = [array[i : i + 3] for i in range(0, len(entries), 3)]
    expected = encode_batch(entries)

    emitted: list[int] = []
    emit = batch._emit
    monkeypatch.setattr(batch, "_emit", lambda run, write: (emitted.append(len(run)), emit(run, write)))
    for parts in (lists, arrays):
        emitted.clear()
        assert encode_batch_parts(parts) == expected
        assert sum(emitted) == len(entries)
        assert len(emitted) < len(parts) / 100


def test_should_make_no_python_object_per_record_of_an_array() -> None:
    array = pa.array([b"0123456789abcdef"] * 500_000)
    peak = traced_peak(lambda: encode_batch_parts([array]))
    assert peak < 2 * MIB  # half a million of even the smallest objects would be 16 MB


def test_should_encode_arrays_in_halves_when_one_page_cannot_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_entries, "_RUN_BYTES_MAX", 10_000)
    entries = [*sample("medium"), b"x" * 30_000]
    for kind in (pa.binary(), pa.large_binary()):
        assert encode_batch(pa.array(entries, kind)) == block_of(entries) + footer(0, len(entries))


def test_should_fall_back_to_the_loop_when_pages_do_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "can_write_pages", lambda _: False)
    for kind in ("small", "medium", "large"):
        entries = sample(kind)
        assert encode_batch(pa.array(entries)) == block_of(entries) + footer(0, len(entries))


# ------------------------------------------------------------------------------------------------- round trips

MANY_SMALL = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ENTRIES = st.lists(st.binary(max_size=60) | st.binary(min_size=200, max_size=6000), max_size=120)


@MANY_SMALL
@given(entries=ENTRIES, compression=st.sampled_from(["none", "zstd"]), pages=st.booleans(), arrow=st.booleans())
def test_should_round_trip_any_entries(entries: list[bytes], compression: str, pages: bool, arrow: bool) -> None:
    with always_pages() if pages else always_loops():
        source = pa.array(entries, pa.binary()) if arrow else entries
        data = encode_batch(source, compression)
        assert decode_batch(data) == entries
        assert decode_batch_arrow(data).to_pylist() == entries
    if compression == "none":
        assert data == block_of(entries) + footer(0, len(entries))


@MANY_SMALL
@given(
    parts=st.lists(st.tuples(ENTRIES, st.sampled_from(["list", "binary", "large", "slice"])), max_size=6),
    pages=st.booleans(),
)
def test_should_round_trip_any_parts(parts: list[tuple[list[bytes], str]], pages: bool) -> None:
    def shape(entries: list[bytes], kind: str) -> Any:
        match kind:
            case "list":
                return entries
            case "slice":
                return pa.array([b"before", *entries, b"after"], pa.binary())[1:-1]
            case _:
                return pa.array(entries, pa.large_binary() if kind == "large" else pa.binary())

    everything = [entry for entries, _ in parts for entry in entries]
    with always_pages() if pages else always_loops():
        shaped = [shape(entries, kind) for entries, kind in parts]
        assert encode_batch_parts(shaped) == block_of(everything) + footer(0, len(everything))


@MANY_SMALL
@given(data=st.binary(max_size=200), code=st.integers(0, 1), count=st.integers(0, 40), version=st.just(1))
def test_should_agree_on_arbitrary_bytes_whichever_road_is_taken(
    data: bytes, code: int, count: int, version: int
) -> None:
    def outcome(decode: Callable[[bytes], Any]) -> list[bytes] | None:
        try:
            entries = decode(data + footer(code, count, version))
        except CorruptBatch:
            return None
        return entries if isinstance(entries, list) else entries.to_pylist()

    outcomes = []
    for road in (always_pages, always_loops):
        with road():
            outcomes += [outcome(decode_batch), outcome(decode_batch_arrow)]
    assert all(other == outcomes[0] for other in outcomes)


# ------------------------------------------------------------------------------------------- users of the codec


@COMPRESSIONS
def test_should_work_from_many_threads_at_once(compression: str) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(15):
            entries = [rng.randbytes(rng.randrange(60)) for _ in range(1000)]
            data = encode_batch(pa.array(entries), compression)
            if decode_batch_arrow(data).to_pylist() != entries or decode_batch(data) != entries:
                wrong.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_should_work_in_a_forked_child_after_use_in_the_parent() -> None:
    """Spark forks its Python workers; Arrow's threads of the parent are not there then."""
    code = """
import os, pyarrow as pa
from buffer.codec.batch import decode_batch_arrow, encode_batch
array = pa.array([b"0123456789"] * 300_000)  # enough for a copy with several threads
assert decode_batch_arrow(encode_batch(array)).equals(array)
child = os.fork()
if child == 0:
    os._exit(0 if decode_batch_arrow(encode_batch(array)).equals(array) else 7)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=HANGS_S, text=True)
    assert result.returncode == 0, result.stderr
