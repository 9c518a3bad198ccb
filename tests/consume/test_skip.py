"""A batch whose object is gone for good does not stop a reader for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import CorruptBatch, InvalidInput, ObjectNotFound
from buffer.produce.producer import Producer


@pytest.fixture
def consumer(tmp_path: Path) -> Consumer:
    """Of four batches; the second has no object, the third is damaged."""
    with Producer(ProducerConfig(store=str(tmp_path), flush_interval_ms=60_000)) as producer:
        for name in (b"a", b"b", b"c", b"d"):
            producer.produce([name])
            producer.flush()
    consumer = Consumer.new(ConsumerConfig(store=str(tmp_path), gc_enabled=False))
    gone, damaged = (d.location for d in list(consumer.manifest().entries_from(1))[:2])
    (tmp_path / gone).unlink()
    (tmp_path / damaged).write_bytes(b"no batch")
    return consumer


def test_should_go_past_a_batch_that_was_skipped(consumer: Consumer) -> None:
    batch = consumer.next_batch()
    assert batch is not None
    consumer.ack(0)
    for sequence, error in ((1, ObjectNotFound), (2, CorruptBatch)):
        for _ in range(2):  # by itself it stays there
            with pytest.raises(error, match=rf"go on without it: skip\({sequence}\), then ack it") as caught:
                consumer.next_batch()
        assert caught.value.location is not None
        consumer.skip(sequence)
        consumer.ack(sequence)
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.entries == [b"d"]
    consumer.ack(3)
    assert len(consumer) == 0


@pytest.mark.parametrize("sequence", [0, 2, 4])
def test_should_skip_only_what_is_at_the_cursor(consumer: Consumer, sequence: int) -> None:
    consumer.next_batch()
    with pytest.raises(InvalidInput):
        consumer.skip(sequence)
    assert consumer.cursor == 1


def test_should_not_skip_what_is_not_in_the_queue_yet(consumer: Consumer) -> None:
    consumer.next_descriptors(4)
    with pytest.raises(InvalidInput, match="nothing at the cursor"):
        consumer.skip(4)


@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize("prefetch", [1, 8])
def test_should_go_past_a_skipped_batch_while_reading_ahead(consumer: Consumer, auto_ack: bool, prefetch: int) -> None:
    found: list[bytes] = []
    said: list[str] = []
    with consumer.batches(prefetch=prefetch, auto_ack=auto_ack) as batches:
        while True:
            try:
                batch = next(batches, None)
            except (ObjectNotFound, CorruptBatch) as error:
                said.append(str(error))
                sequence = len(found)
                with pytest.raises(InvalidInput, match=f"is due is {sequence}"):
                    batches.skip(sequence + 1)
                batches.skip(sequence)
                found.append(b"skipped")
                if not auto_ack:
                    batches.ack(sequence)
                continue
            if batch is None:
                break
            found += batch.entries
            if not auto_ack:
                batches.ack(batch)
    assert found == [b"a", b"skipped", b"skipped", b"d"]
    assert [f"skip({sequence})" in text for sequence, text in enumerate(said, 1)] == [True, True]
    assert len(consumer) == 0
