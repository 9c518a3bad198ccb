"""A queue of the older format moves into a new one: every pair once, in order, whoever dies or is in the way."""

from __future__ import annotations

import json
from itertools import count

import pytest

from buffer.errors import ClaimLost, CorruptManifest, InvalidInput, ObjectNotFound, StateLost
from buffer.legacy.format import ConsumerManifest, KeyValueEntry, encode_batch
from buffer.legacy.manifests import MOVING_MS, PARKED_MS
from buffer.legacy.moves import Move as MoveValue
from buffer.legacy.moves import Moves, decode_moves, encode_moves
from buffer.store import open_store
from tests.legacy.golden import STATES, T0_MS, manifest_path_of, store_of
from tests.legacy.legacy_support import TIMEOUT_MS, LegacyQueue, next_of
from tests.legacy.migration_support import EagerProducer, Killed, MortalStore, Move

MOVES_PATH = "q/manifest.moves.json"


def moves_of(move: Move) -> Moves:
    return decode_moves(move.old.store.get(MOVES_PATH).data, MOVES_PATH)


def test_should_move_every_pair_in_order_and_leave_the_old_queue_clean() -> None:
    move = Move()
    texts = [f"k{index}" for index in range(11)]
    locations = move.old.ingest(*texts)

    assert move.run() == 11

    assert move.keys() == texts
    assert move.old.consumer.claimed == {}
    assert set(move.old.pending) <= set(move.old.consumer.done)
    assert not set(locations[:9]) & move.old.objects(), "a clean-up came after every third"
    moves = moves_of(move)
    assert (moves.batches, moves.pairs, moves.open, moves.next) == (11, 11, (), 11)
    assert move.run() == 0, "and again there is nothing to do"
    assert move.keys() == texts


def test_should_go_on_where_a_later_writer_went_on() -> None:
    move = Move()
    move.old.ingest("a", "b")
    move.run()
    move.old.ingest("c")
    move.run()
    assert move.keys() == ["a", "b", "c"]


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_should_move_every_pair_once_wherever_it_is_killed(after: bool) -> None:
    """Every write of a whole migration, in both queues, is the last one of a process."""
    texts = [f"k{index}" for index in range(7)]
    for dies_at in count(1):
        move = Move()
        move.old.ingest(*texts)
        died = 0
        for side in ("old", "new"):
            mortal = MortalStore(move.old.store if side == "old" else move.new_store, dies_at, after=after)
            try:
                move.run(move.migration(**{side: mortal}))
            except Killed:
                died += 1
        move.run()
        assert move.keys() == texts, f"killed at write {dies_at}"
        assert move.old.consumer.claimed == {}
        if not died:
            assert dies_at > 10, "it died at least this often"
            return


def test_should_move_every_pair_once_although_it_is_killed_all_the_time() -> None:
    move = Move()
    texts = [f"k{index}" for index in range(20)]
    move.old.ingest(*texts)
    for life in count():
        # Long enough for some step to be finished, and each time another one.
        old = MortalStore(move.old.store, 2 + life % 5, after=life % 2 == 0)
        try:
            if move.run(move.migration(old=old)) == 0:
                break
        except Killed:
            continue
    assert life > 10
    assert move.keys() == texts


def test_should_be_one_migration_when_two_run_at_once() -> None:
    move = Move()
    texts = [f"k{index}" for index in range(9)]
    move.old.ingest(*texts)
    one, two = move.migration(), move.migration(window=3)
    one.open()
    two.open()
    while one.step().batches + two.step().batches:
        pass
    assert move.keys() == texts
    assert moves_of(move).pairs == 9


def test_should_number_no_batch_that_another_migration_has_finished_since_it_looked() -> None:
    """The other one moves, acks, retires and cleans up between our look at the claims and our numbering."""
    move = Move()
    move.old.ingest("a", "b")
    one, two = move.migration(threshold=1), move.migration(threshold=1)
    one.open()
    two.open()
    look = one._line

    def look_and_wait() -> object:
        found = look()
        one._line = look  # type: ignore[method-assign]  # the other one comes once
        while two.step().batches:
            pass
        return found

    one._take()
    one._line = look_and_wait  # type: ignore[method-assign, assignment]
    while one.step().batches:
        pass
    assert move.keys() == ["a", "b"]
    assert moves_of(move).pairs == 2


def test_should_go_on_behind_a_migration_that_is_ahead_in_the_middle_of_a_batch() -> None:
    """It was killed when half of a large batch was in the new queue; calls are cut anew."""
    move = Move()
    pairs = [KeyValueEntry(b"k%d" % index, b"v" * 30) for index in range(9)]
    move.old.store.put("q/large.json", encode_batch(pairs))
    move.old.plant(["q/large.json"])
    for landed in (1, 2):
        mortal = MortalStore(move.new_store, 4 if landed == 1 else 2, after=True)
        with pytest.raises(Killed):
            move.run(move.migration(new=mortal, producer=EagerProducer, flush_size_bytes=100))
        assert list(map(len, move.batches())) == [2] * landed
    move.run(move.migration(flush_size_bytes=150))
    assert [pair for batch in move.batches() for pair in batch] == pairs
    assert list(map(len, move.batches())) == [2, 2, 5]


# Others at the same queue


def test_should_wait_for_a_claim_in_front_and_then_keep_the_order() -> None:
    move = Move()
    move.old.ingest("a", "b", "c")
    collector = move.old.claims()
    held = next_of(collector)
    migration = move.migration(window=3)
    migration.open()
    step = migration.step()
    assert step.batches == 0
    assert step.line.behind == (held.location, held.claimed_ms)
    assert step.line.left == 3
    assert collector.next_batch() is None, "what comes behind is taken: no Collector gets it any more"
    move.old.clock.advance(TIMEOUT_MS / 1000 + 0.001)
    assert move.run(migration) == 3
    assert move.keys() == ["a", "b", "c"]
    with pytest.raises(ClaimLost):
        collector.ack(held)


def test_should_take_over_a_stale_claim_although_it_holds_a_whole_window_behind_it() -> None:
    move = Move()
    locations = move.old.ingest("a", "b", "c")
    move.old.plant(locations, ConsumerManifest({locations[0]: T0_MS, **dict.fromkeys(locations[1:], MOVING_MS)}, ()))
    move.old.store.put(MOVES_PATH, encode_moves(Moves("migrate/x", move.migration()._target.open("migrate/x"))))
    move.old.clock.advance(TIMEOUT_MS / 1000 + 0.001)
    assert move.run() == 3
    assert move.keys() == ["a", "b", "c"]


def test_should_not_move_what_a_collector_acks() -> None:
    move = Move()
    move.old.ingest("a", "b", "c")
    collector = move.old.claims()
    held = next_of(collector)
    migration = move.migration()
    migration.open()
    migration.step()
    collector.ack(held)
    move.run(migration)
    assert move.keys() == ["b", "c"]


def test_should_never_let_a_collector_take_over_what_it_has_taken() -> None:
    move = Move()
    move.old.ingest("a", "b")
    migration = move.migration()
    migration.open()
    migration._take()
    assert set(move.old.consumer.claimed.values()) == {MOVING_MS}
    move.old.clock.advance(10 * 365 * 24 * 3600)
    assert move.old.claims().next_batch() is None
    move.run()
    assert move.keys() == ["a", "b"]


def test_should_finish_what_a_collector_of_that_time_marks_as_its_own_once_more() -> None:
    """Its heartbeat writes over any claim. What has numbers is moved even so, and done."""
    move = Move()
    (location,) = move.old.ingest("a")
    with pytest.raises(Killed):
        move.run(move.migration(new=MortalStore(move.new_store, 4, after=False)))
    assert moves_of(move).open == (MoveValue(location, 0, 1),)
    move.old.plant([location], ConsumerManifest({location: T0_MS}, ()))
    move.run()
    assert move.keys() == ["a"]
    assert move.old.consumer == ConsumerManifest({}, (location,))


def test_should_not_move_what_was_collected_and_cleaned_up_after_it_got_numbers() -> None:
    move = Move()
    first, second = move.old.ingest("a", "b")
    with pytest.raises(Killed):
        move.run(move.migration(new=MortalStore(move.new_store, 4, after=False)))
    assert [each.location for each in moves_of(move).open] == [first, second]
    move.old.store.delete_many([first])
    move.old.plant([second], ConsumerManifest({second: MOVING_MS}, ()))
    move.run()
    assert move.keys() == ["b"]


def test_should_give_back_what_has_no_numbers_yet() -> None:
    move = Move()
    move.old.ingest("a", "b", "c")
    migration = move.migration()
    migration.open()
    migration._take()
    assert migration.give_back() == 2
    assert next_of(move.old.claims()).entries[0].key == b"a"


# What cannot be moved


def test_should_park_what_cannot_be_read_and_move_the_rest() -> None:
    move = Move()
    (first,) = move.old.ingest("a")
    move.old.store.put("q/bad.json", b"[nonsense")
    move.old.plant_batch("q/good.json", "b")
    move.old.plant([first, "q/bad.json", "q/gone.json", "q/good.json"])
    move.run()
    assert move.keys() == ["a", "b"]
    assert move.old.consumer.claimed == {"q/bad.json": PARKED_MS, "q/gone.json": PARKED_MS}
    parked = move.migration().parked()
    assert "CorruptBatch" in parked["q/bad.json"].why
    assert "ObjectNotFound" in parked["q/gone.json"].why
    assert {"q/bad.json", "q/gone.json"} <= set(move.old.pending), "never dropped"

    move.old.plant_batch("q/bad.json", "repaired")
    move.old.claims().unpark("q/bad.json")
    move.run()
    assert move.keys() == ["a", "b", "repaired"]


def test_should_park_a_pair_that_fits_no_batch_of_the_new_queue() -> None:
    move = Move()
    move.old.ingest("a", "x" * 200, "b")
    move.run(move.migration(max_batch_bytes=100))
    assert move.keys() == ["a", "b"]
    (parked,) = move.migration().parked().values()
    assert "pair 0 takes 405 bytes as an entry, but max_batch_bytes of the new queue is 100" in parked.why


def test_should_stop_at_a_batch_that_is_gone_although_it_has_numbers() -> None:
    move = Move()
    (location,) = move.old.ingest("a")
    with pytest.raises(Killed):
        move.run(move.migration(new=MortalStore(move.new_store, 4, after=False)))
    saved = move.old.store.get(location).data
    move.old.store.delete_many([location])
    with pytest.raises(ObjectNotFound) as caught:
        move.run()
    assert "restore the object" in caught.value.__notes__[0]
    move.old.store.put(location, saved)
    move.run()
    assert move.keys() == ["a"]


def test_should_move_batches_without_pairs() -> None:
    move = Move()
    move.old.store.put("q/empty.json", b"[]")
    move.old.plant(["q/empty.json"])
    assert move.run() == 1
    assert move.old.consumer.done == ("q/empty.json",)


# What must not be


def test_should_refuse_another_new_queue() -> None:
    move = Move()
    move.old.ingest("a")
    move.run()
    move.new_store = open_store("memory://")
    with pytest.raises(InvalidInput, match="is being moved to the queue with the id"):
        move.run()


def test_should_refuse_to_go_on_without_its_list() -> None:
    move = Move()
    move.old.ingest("a", "b")
    migration = move.migration()
    migration.open()
    migration._take()
    move.old.store.delete_many([MOVES_PATH])
    with pytest.raises(StateLost, match=r"its list of moves 'q/manifest.moves.json' is gone"):
        move.run()


def test_should_refuse_a_new_queue_that_has_lost_what_was_durable() -> None:
    move = Move()
    move.old.ingest("a")
    before = {info.location: move.new_store.get(info.location).data for info in move.new_store.list("")}
    assert before == {}
    move.run()
    ledger = move.new_store.get("ingest/manifest.ledger").data
    move.new_store.delete_many([info.location for info in move.new_store.list("")])
    document = json.loads(ledger)
    document["clients"] |= {"marks": {}, "through": -1}
    move.new_store.put("ingest/manifest.ledger", json.dumps(document).encode())
    move.new_store.put("ingest/manifest", b"\x00" * 4 + b"\x00" * 16 + b"\x01\x00")
    move.old.ingest("b")
    with pytest.raises(StateLost, match=r"the new queue is at number -1 .* but 0 was durable"):
        move.run()


@pytest.mark.parametrize(
    "damage",
    [b"", b"[]", b'{"version":2}', encode_moves(Moves("c", "t", next=1, open=(MoveValue("x", 0, 2),)))],
)
def test_should_refuse_a_damaged_list(damage: bytes) -> None:
    with pytest.raises(CorruptManifest, match="the list of moves at 'm' is damaged"):
        decode_moves(damage, "m")


def test_should_read_the_list_that_it_writes() -> None:
    moves = Moves("c", "t", 3, 9, (MoveValue("ü/x.json", 4, 5),), 3, 7, 40)
    assert decode_moves(encode_moves(moves), "m") == moves


@pytest.mark.parametrize("state", STATES)
def test_should_move_each_golden_state(state: str) -> None:
    """What was done then stays done; what was claimed then is moved once its claim is stale."""
    move = Move()
    store = open_store("memory://")
    for location, data in store_of(state).items():
        store.put(location, data)
    move.old = LegacyQueue(store, manifest_path_of(state))
    expected = LegacyQueue(open_store("memory://"), manifest_path_of(state))
    for location, data in store_of(state).items():
        expected.store.put(location, data)
    expected.clock.advance(TIMEOUT_MS / 1000 + 2)
    owed = {}
    collector = expected.claims()
    while (batch := collector.next_batch()) is not None:
        owed[batch.location] = batch.entries
        collector.ack(batch)
    in_order = [owed[location] for location in dict.fromkeys(move.old.pending) if location in owed]

    move.old.clock.advance(TIMEOUT_MS / 1000 + 2)
    assert move.run() == len(owed)
    moved = [pair for batch in move.batches() for pair in batch] if any(in_order) else []
    assert moved == [pair for batch in in_order for pair in batch]
