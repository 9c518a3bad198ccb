"""`Intake` by itself: no threads, no store, time by hand."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.codec.batch import decode_batch
from buffer.config import ProducerConfig
from buffer.manifest import Manifest
from buffer.produce.intake import Intake, PendingBatch, check_call
from buffer.testing import ManualClock


def make_intake(clock: ManualClock | None = None, **settings: int) -> Intake:
    return Intake(ProducerConfig(store="memory://", **settings), clock or ManualClock())


def offer(intake: Intake, *entries: bytes) -> bool:
    return intake.offer(check_call(list(entries), b"", 1 << 30)) is not None


def test_should_seal_by_the_deadline_of_the_first_entry() -> None:
    clock = ManualClock()
    intake = make_intake(clock, flush_interval_ms=100)
    assert intake.deadline_s is None
    offer(intake, b"one")
    assert intake.deadline_s == 0.1
    clock.advance(0.099)
    offer(intake, b"two")
    intake.seal_if_due()
    assert not intake.sealed
    clock.advance(0.001)
    intake.seal_if_due()
    assert [batch.entry_count for batch in intake.sealed] == [2]
    assert intake.deadline_s is None


def test_should_seal_in_the_call_that_finds_the_deadline_passed() -> None:
    # A caller that never lets the timer run cannot keep the batch open.
    clock = ManualClock()
    intake = make_intake(clock, flush_interval_ms=100)
    offer(intake, b"one")
    clock.advance(0.1)
    offer(intake, b"two")
    assert [batch.entry_count for batch in intake.sealed] == [2]


def test_should_seal_on_time_when_the_wall_clock_was_set_back() -> None:
    clock = ManualClock()
    intake = make_intake(clock, flush_interval_ms=100)
    offer(intake, b"one")
    clock.jump_ms(-3_600_000)
    clock.advance(0.1)
    offer(intake, b"two")
    intake.seal_if_due()
    assert [batch.entry_count for batch in intake.sealed] == [2]


def test_should_not_count_calls_while_uploaders_keep_up() -> None:
    # The limit is on calls that wait, not on calls in a batch: a busy queue still makes large batches.
    intake = make_intake(max_buffered_inputs=2)
    assert all(offer(intake, b"x") for _ in range(100))


def test_should_count_calls_while_a_sealed_batch_waits() -> None:
    intake = make_intake(max_buffered_inputs=3)
    offer(intake, b"1")
    offer(intake, b"2")
    intake.seal()
    assert offer(intake, b"3")
    assert not offer(intake, b"4")
    intake.take()
    assert offer(intake, b"4")


def test_should_count_bytes_until_the_batch_is_released() -> None:
    intake = make_intake(max_buffered_bytes=200)
    assert offer(intake, b"x" * 100)
    assert not offer(intake, b"y" * 100)
    assert len(intake.sealed) == 1, "what is open has to move to make room"
    batch = intake.take()
    assert not offer(intake, b"y" * 100)
    intake.release(batch)
    assert offer(intake, b"y" * 100)


def test_should_accept_one_call_larger_than_the_buffer_when_it_is_empty() -> None:
    intake = make_intake(max_buffered_bytes=10)
    assert offer(intake, b"x" * 100)
    assert not offer(intake, b"")


calls = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=30), min_size=1, max_size=5),
        st.sampled_from(["list", "binary", "large_binary"]),
        st.sampled_from([b"", b"", b"payload"]),
    ),
    max_size=40,
)


@settings(deadline=None)  # the first example pays for setting up the Parquet writer
@given(calls, st.integers(50, 400), st.integers(150, 500))
def test_should_keep_every_call_whole_and_in_order(
    calls: list[tuple[list[bytes], str, bytes]], flush_size_bytes: int, max_batch_bytes: int
) -> None:
    intake = make_intake(flush_size_bytes=flush_size_bytes, max_batch_bytes=max_batch_bytes)
    for entries, kind, payload in calls:
        given_as = entries if kind == "list" else pa.array(entries, getattr(pa, kind)())
        assert intake.offer(check_call(given_as, payload, 500), payload), "nothing bounds this intake"
    intake.seal()
    batches: list[PendingBatch] = []
    while intake.sealed:
        batches.append(intake.take())

    found = []
    for batch in batches:
        data = batch.encode("none")
        assert len(data) - 7 == batch.block_bytes
        assert batch.block_bytes <= max_batch_bytes or batch.calls == 1
        assert batch.metadata is not None
        (entry,) = Manifest.empty().append_all([("location", batch.metadata)])
        decoded = decode_batch(data)
        starts = [item.start_index for item in entry.metadata]
        ends = [*starts[1:], len(decoded)]
        found += [
            (decoded[start:end], item.payload) for start, end, item in zip(starts, ends, entry.metadata, strict=True)
        ]
        intake.release(batch)
    assert found == [(entries, payload) for entries, _, payload in calls]
    assert intake.is_empty
