"""A queue under a streaming query: claims, acks, limits and refusals, without a JVM. Spark's calls are made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, InvalidInput, ManifestLost, QueueBehindConsumer, QueueBound
from buffer.inspect.status import read_manifest
from buffer.ledger.plan import Ledger
from buffer.names import dead_letter_location
from buffer.store.open import open_store
from buffer_delta.errors import SequenceGap, StartUnknown
from buffer_delta.spark.source import BufferDataSource, readers
from buffer_delta.spark.source.offsets import Offset
from buffer_delta.spark.source.options import read_options
from buffer_delta.spark.source.stream import QueueStream
from tests.consume.consumer_support import Tapped
from tests.consume.consumer_support import fill as put_batches

PATH = "ingest/manifest"
WRITES = ("put", "put_if_absent", "put_if_match", "delete_many", "copy")


class Query:
    """Calls a stream as Spark does, with a checkpoint that outlives it. `restart` is what a crash leaves."""

    def __init__(self, store: Tapped, **options: str) -> None:
        self.store = store
        self.options = {"path": "unused", "gc_enabled": "false", **options}
        self.offsets: list[dict[str, Any]] = []
        """The checkpoint: the end of each range. Where the first one began is not in it."""
        self.done = 0
        """How many ranges are noted as done."""
        self.rows: list[int] = []
        self.restart()

    def restart(self) -> None:
        self.stream = QueueStream(self.store, read_options(self.options), SystemClock())

    def plan(self, limited: bool = True) -> bool:
        """Ask for the next range and write it into the checkpoint. False: there is none."""
        start = self.spelled(self.stream.initial()) if not self.offsets else self.offsets[-1]
        end = self.spelled(self.stream.latest(Offset.from_json(start), limited=limited))
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def range(self) -> tuple[Offset, Offset]:
        """The newest range of the checkpoint, as Spark would name it after a restart."""
        start = self.spelled(self.stream.initial()) if len(self.offsets) == 1 else self.offsets[-2]
        return Offset.from_json(start), Offset.from_json(self.offsets[-1])

    def run(self) -> None:
        """Run the range that the checkpoint holds and nothing says is done."""
        assert self.done == len(self.offsets) - 1
        for task in self.stream.planned(*self.range()):
            self.rows += [descriptor.sequence for descriptor in task]
        self.done += 1

    def drain(self) -> list[int]:
        while self.plan():
            self.run()
        return self.rows

    @staticmethod
    def spelled(offset: Offset) -> dict[str, Any]:
        """Through JSON, as Spark keeps it."""
        return dict(json.loads(json.dumps(offset.to_json())))


@pytest.fixture
def store(tmp_path: Path) -> Tapped:
    return Tapped(open_store(str(tmp_path / "queue")))


def fill(store: Tapped, batches: int) -> None:
    put_batches(store.store, batches)


def queue(store: Tapped) -> tuple[int, int, int]:
    """First and next sequence, and the epoch."""
    manifest = read_manifest(store.store, PATH)
    return manifest.first_sequence, manifest.next_sequence, manifest.epoch


def writes(store: Tapped) -> list[Any]:
    return [call for call in store.calls if call[0] in WRITES]


def test_should_hand_out_every_batch_once_and_ack_all_of_them_while_idle(store: Tapped) -> None:
    fill(store, 7)
    query = Query(store, max_batches_per_trigger="3")
    assert query.drain() == list(range(7))
    assert query.done == 3
    assert queue(store) == (7, 7, 1)


def test_should_claim_only_once_a_range_is_in_the_checkpoint(store: Tapped) -> None:
    fill(store, 2)
    query = Query(store)
    store.calls.clear()
    assert query.plan()
    assert writes(store) == []
    assert queue(store) == (0, 2, 0)
    query.run()
    assert queue(store) == (0, 2, 1)


def test_should_claim_at_once_when_told_where_to_start(store: Tapped) -> None:
    fill(store, 2)
    query = Query(store, start="earliest")
    assert query.plan()
    assert queue(store) == (0, 2, 1)


def test_should_wait_for_a_queue_that_nobody_has_produced_into_yet(store: Tapped) -> None:
    query = Query(store)
    assert not query.plan()
    fill(store, 2)
    assert query.drain() == [0, 1]


@pytest.mark.parametrize("crash", ["before the range runs", "after the range ran", "after its ack"])
def test_should_replay_exactly_the_range_in_the_checkpoint(store: Tapped, crash: str) -> None:
    fill(store, 4)
    query = Query(store, max_batches_per_trigger="2")
    assert query.plan()
    if crash != "before the range runs":
        query.run()
    if crash == "after its ack":
        assert query.plan()
        assert queue(store)[0] == 2
    query.restart()
    fill(store, 3)
    if query.done < len(query.offsets):
        query.run()
    assert query.drain() == list(range(7))
    assert queue(store)[:2] == (7, 7)


def test_should_ack_what_the_checkpoint_has_and_the_queue_does_not_know_of(store: Tapped) -> None:
    fill(store, 5)
    query = Query(store, max_batches_per_trigger="3")
    query.plan()
    query.run()
    assert queue(store)[0] == 0
    query.restart()
    assert query.plan()
    assert queue(store)[0] == 3
    assert query.offsets[-1]["next"] == 5


def test_should_replay_the_first_range_as_it_was_when_batches_were_taken_from_it(store: Tapped) -> None:
    fill(store, 6)
    query = Query(store, ack="false", max_batches_per_trigger="4")
    query.plan()
    Consumer.new(ConsumerConfig(store=store.url, gc_enabled=False), 1).close()
    query.restart()
    with pytest.raises(SequenceGap, match=r"goes on at sequence 0, .* starts at 2: 2 batches"):
        query.run()


def test_should_refuse_a_checkpoint_of_two_halves(store: Tapped) -> None:
    fill(store, 6)
    query = Query(store)
    with pytest.raises(InvalidInput, match=r"range 2\.\.3 after one that ends before 4"):
        query.stream.planned(Offset(0, 4, "ingest/x"), Offset(2, 4, "ingest/y"))


def test_should_fence_the_older_process_of_a_query_that_was_restarted(store: Tapped) -> None:
    fill(store, 4)
    query = Query(store, max_batches_per_trigger="1")
    query.plan()
    query.run()
    older = query.stream
    query.restart()
    assert query.plan()
    start, end = query.range()
    with pytest.raises(Fenced, match=r"another query or consumer has taken over .* epoch 1, now it is at epoch 2"):
        older.latest(start, limited=True)
    with pytest.raises(Fenced):
        older.planned(start, end)
    with pytest.raises(Fenced):
        older.done(end)
    assert queue(store) == (1, 4, 2)


def test_should_refuse_a_checkpoint_whose_range_is_gone(store: Tapped) -> None:
    fill(store, 9)
    query = Query(store, max_batches_per_trigger="3")
    query.plan()
    Consumer.new(ConsumerConfig(store=store.url, gc_enabled=False), 4).close()
    query.restart()
    store.calls.clear()
    with pytest.raises(SequenceGap, match=r"goes on at sequence 0, .* starts at 5: 5 batches") as caught:
        query.run()  # though Spark asks anew where the range began, and is told 5
    assert (caught.value.committed, caught.value.earliest) == (-1, 5)
    with pytest.raises(SequenceGap, match=r"sequence 3, .* starts at 5: 2 batches"):
        query.stream.latest(Offset.at(3), limited=True)
    assert writes(store) == []


def test_should_refuse_a_checkpoint_of_another_queue(store: Tapped) -> None:
    fill(store, 2)
    query = Query(store)
    with pytest.raises(QueueBehindConsumer, match=r"goes on at sequence 7, .* only ever held sequences below 2"):
        query.stream.latest(Offset.at(7), limited=True)
    assert queue(store) == (0, 2, 0)
    with pytest.raises(InvalidInput, match="another query"):
        Offset.from_json({"topic": {"0": 4}})


def test_should_notice_a_manifest_that_was_put_back_from_a_backup(store: Tapped) -> None:
    fill(store, 2)
    backup = store.store.get(PATH).data
    fill(store, 3)
    query = Query(store)
    query.plan()
    query.run()
    store.store.put(PATH, backup)
    fill(store, 3)
    query.restart()
    with pytest.raises(ManifestLost, match=r"sequence 4 of .* restored from a backup"):
        query.plan()
    assert queue(store) == (0, 5, 0)


def test_should_ask_where_to_start_when_the_checkpoint_was_deleted(store: Tapped) -> None:
    fill(store, 6)
    query = Query(store, max_batches_per_trigger="2")
    query.plan()
    query.run()
    query.plan()
    query.run()
    store.calls.clear()
    with pytest.raises(StartUnknown, match=r"epoch is 1\) and holds batches 2\.\.5") as caught:
        Query(store).plan()
    assert (caught.value.first_sequence, caught.value.next_sequence) == (2, 6)
    assert writes(store) == []
    assert Query(store, start="4").drain() == [4, 5]
    assert queue(store)[:2] == (6, 6)


@pytest.mark.parametrize(("start", "error"), [("1", SequenceGap), ("7", QueueBehindConsumer)])
def test_should_refuse_a_start_that_is_not_in_the_queue(store: Tapped, start: str, error: type[Exception]) -> None:
    fill(store, 6)
    Consumer.new(ConsumerConfig(store=store.url, gc_enabled=False), 2).close()
    with pytest.raises(error):
        Query(store, start=start).plan()


@pytest.mark.parametrize("bind_after", [0, 1], ids=["before", "while it claims"])
def test_should_refuse_the_queue_of_a_loader(store: Tapped, bind_after: int) -> None:
    fill(store, 2)
    ledger = Ledger(queue_id="01J", app_id="buffer/01J", tables=("events",), born=True)
    query = Query(store)
    if bind_after:
        assert query.plan()
    store.store.put(f"{PATH}.ledger", ledger.to_bytes())
    store.calls.clear()
    with pytest.raises(QueueBound, match="feeds 'events' through a loader"):
        query.run() if bind_after else query.plan()
    assert writes(store) == []


def test_should_hand_nothing_out_when_a_loader_binds_the_queue_during_the_claim(store: Tapped) -> None:
    fill(store, 2)
    ledger = Ledger(queue_id="01J", app_id="buffer/01J", tables=("events",))
    query = Query(store)
    query.plan()

    def bind(call: str, location: str) -> None:
        if call.startswith("put_if") and location == PATH:
            store.store.put(f"{PATH}.ledger", ledger.to_bytes())

    store.tap = bind
    with pytest.raises(QueueBound):
        query.run()
    assert query.rows == []


def test_should_refuse_a_queue_that_workers_share(store: Tapped) -> None:
    fill(store, 2)
    store.store.put(f"{PATH}.ledger", Ledger(queue_id="01J", sections={"leases": {}}).to_bytes())
    with pytest.raises(QueueBound, match="shared by workers"):
        Query(store).plan()


def test_should_write_nothing_without_acks_even_beside_a_loader(store: Tapped) -> None:
    fill(store, 5)
    store.store.put(f"{PATH}.ledger", Ledger(queue_id="01J", app_id="a", tables=("t",), born=True).to_bytes())
    query = Query(store, ack="false", max_batches_per_trigger="2")
    store.calls.clear()
    assert query.drain() == list(range(5))
    query.stream.done(Offset.from_json(query.offsets[-1]))
    assert writes(store) == []
    assert queue(store) == (0, 5, 0)


def test_should_obey_both_limits_and_none_when_asked_for_everything(store: Tapped) -> None:
    fill(store, 6)
    size = store.store.head(read_manifest(store.store, PATH).read(0).location).size  # type: ignore[union-attr]
    by_bytes = Query(store, ack="false", max_bytes_per_trigger=str(2 * size + 1), max_batches_per_trigger="5")
    by_bytes.plan()
    assert by_bytes.offsets[-1]["next"] == 2
    by_count = Query(store, ack="false", max_bytes_per_trigger=str(100 * size), max_batches_per_trigger="5")
    by_count.plan()
    assert by_count.offsets[-1]["next"] == 5
    too_small = Query(store, ack="false", max_bytes_per_trigger="1")
    too_small.plan()
    assert too_small.offsets[-1]["next"] == 1
    by_count = Query(store, ack="false", max_bytes_per_trigger="1")
    by_count.plan(limited=False)
    assert by_count.offsets[-1]["next"] == 6


def test_should_stop_at_what_was_there_when_the_query_began(store: Tapped) -> None:
    fill(store, 3)
    query = Query(store, max_batches_per_trigger="2")
    query.stream.stop_at_now()
    fill(store, 3)
    assert query.drain() == [0, 1, 2]
    assert queue(store)[:2] == (3, 6)


def test_should_give_many_tiny_batches_to_few_tasks() -> None:
    store = Tapped(open_store("memory://"))
    fill(store, 10_000)
    query = Query(store)
    assert query.plan()
    start, end = query.range()
    tasks = query.stream.planned(start, end)
    assert [d.sequence for task in tasks for d in task] == list(range(10_000))
    assert 10 <= len(tasks) <= 40
    assert max(map(len, tasks)) <= 1000


def test_should_only_read_for_a_batch_read(store: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    Consumer.new(ConsumerConfig(store=store.url, gc_enabled=False), 0).close()
    monkeypatch.setattr(readers, "opened", lambda _options: store)
    for view, rows in (("rows", 2), ("batches", 2)):
        source = BufferDataSource({"path": store.url, "view": view})
        reader = source.reader(source.schema())
        store.calls.clear()
        found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        assert sum(batch.num_rows for batch in found) == rows
        assert {call for call, _ in store.calls} <= {"get", "get_bounded", "get_range", "list"}
        assert [location for call, location in store.calls if location == PATH] == [PATH]
    assert queue(store) == (1, 3, 1)


def test_should_show_the_batches_that_were_kept_whole(store: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 1)
    monkeypatch.setattr(readers, "opened", lambda _options: store)
    source = BufferDataSource({"path": store.url, "view": "dead_letters"})
    reader = source.reader(source.schema())
    assert reader.partitions() == []
    kept = dead_letter_location("ingest/01J.batch")
    store.store.put(kept, b"damaged")
    store.store.put("ingest/dead_letters/notes.txt", b"no dead letter")
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert [batch.to_pylist() for batch in found] == [
        [{"location": "ingest/01J.batch", "kept_as": kept, "bytes": 7, "value": b"damaged"}]
    ]


def test_should_read_the_manifest_once_a_trigger_while_idle(store: Tapped) -> None:
    fill(store, 3)
    query = Query(store)
    query.drain()
    store.calls.clear()
    assert not query.plan()
    assert [call[0] for call in store.calls] == ["get_if_changed"]
