"""Moves a queue of the older format into a new one: every pair once, in order, whenever the process dies.

One window of batches at a time. What happens if the process dies right after a step, and who repairs it:

    1 take      claim batches with a time that never comes       they wait for the next run; no Collector, of whatever
                                                                 make, takes them over
    2 read      and park what cannot be read                     parking is repeated, see `parked.py`
    3 number    give each pair a number, in the file `moves`     the next run finds them there, reads the batches again
                                                                 and produces the same pairs under the same numbers
    4 produce   under a client mark, in calls of these numbers   the new queue knows the largest number that it has: the
                                                                 next run goes on behind it
    5 ack       done in the old queue                            the next run finds all numbers in the new queue, acks
    6 retire    take them off the list in `moves`                the next run retires them: done is done
    7 clean up  at `done_cleanup_threshold`, see `queue.py`      repeated by the next one

**Where the numbers come from.** Not from places in the old manifest: clean-ups shift them. Not from the mark alone: it
says how many pairs are in the new queue, not of which batches. So the order is written down before anything is
produced (`moves.py`), beside the old manifests, where foreign Collectors neither see nor drop it. A number means one
pair for ever.

**Two at once** are one migration. They share the claims, the numbers and the client: the queue takes each number once,
and whoever is behind gets a conflict, opens again and goes on behind it. What must not happen is that a batch gets
numbers twice: one process reads that it is claimed, the other moves, acks and retires it, the first one numbers it.
Hence the order of looks in step 3: **first `moves`, then the claims**, and the write is conditional on that `moves`.
What was retired before the first look was acked before it, so it is not claimed in the second; what was numbered after
it has changed `moves`.

**A Collector at work at the same time** keeps what it has claimed, and what it acks is not moved. To keep the order,
the migration takes what comes behind, and waits for that claim: it is acked, or goes stale and is taken over. A
Collector of ours that was stopped for so long finds its claim lost. One of the older implementation acks by name
whatever it once had: then a batch may be collected there and moved here, as it may have been collected twice before.
Stop those first.

**A batch that cannot be read** when its turn comes is parked at once, after a second look; the rest goes on. One that
could be read when it was numbered, and cannot any more, stops the migration: part of it may be in the new queue.

**A batch larger than one of the new queue** is cut into calls; each call has the numbers of its pairs, and may be cut
differently the next time. A single pair that fits no batch cannot be moved: its batch is parked with that reason.

**Late writers.** What an Ingestor appends is moved as long as somebody calls `step`; a later run finds the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

from buffer.cas import Snapshot
from buffer.clock import Clock
from buffer.codec.keyvalue import encode_pair
from buffer.errors import BufferQueueError, CorruptBatch, InvalidInput, StateLost
from buffer.legacy import manifests
from buffer.legacy.config import CollectorConfig
from buffer.legacy.format import encode_consumer_manifest, moves_path
from buffer.legacy.manifests import MOVING_MS, Line
from buffer.legacy.moves import Move, Moves, decode_moves, encode_moves
from buffer.legacy.new_queue import NewQueue
from buffer.legacy.queue import UNREADABLE, CanCollect, LegacyQueue

log = logging.getLogger(__name__)

WINDOW_BATCHES = 100
"""Taken, numbered and acked together: as many as a clean-up removes."""
WINDOW_BYTES = 64 << 20  # of entries held in memory, and what was being read when that was reached
READS_AT_ONCE = 8
READS_OF_CORRUPT = 2  # a damaged transfer is not a damaged batch

S = TypeVar("S")
T = TypeVar("T")


class Mapper(Protocol):
    """`map`, or one that reads several batches at once. Results come in the order of the items."""

    def __call__(self, function: Callable[[S], T], items: Iterable[S], /) -> Iterator[T]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What one window moved, and what there is to do."""

    batches: int
    pairs: int
    line: Line


class Migration(LegacyQueue):
    """Moves batches, window by window. One thread; any number of processes."""

    def __init__(
        self,
        store: CanCollect,
        config: CollectorConfig,
        clock: Clock,
        target: NewQueue,
        *,
        window: int = WINDOW_BATCHES,
        mapper: Mapper = map,
    ) -> None:
        super().__init__(store, config, clock)
        self._target = target
        self._window = window
        self._map = mapper
        self._list = self._cas(moves_path(config.manifest_path))
        self._entries: dict[str, list[bytes]] = {}
        """Of batches that were read and are not moved yet."""

    def open(self) -> Moves:
        """Begin, or find what was begun. Raises StateLost, and InvalidInput if that is for another new queue."""
        consumer = self._decode(self._consumer.read())  # before the list, which is written before any claim
        seen = self._list.read()
        if seen.data is None:
            if MOVING_MS in consumer.claimed.values():
                raise self._list_lost()
            client_id = f"migrate/{self._clock.new_ulid()}"
            first = encode_moves(Moves(client_id, self._target.open(client_id)))
            seen = self._list.update(lambda found: first if found.data is None else None)
        moves = self._decode_moves(seen)
        found = self._target.queue_id()
        if found != moves.target:
            named = "none" if found is None else found
            raise InvalidInput(
                f"this queue is being moved to the queue with the id {moves.target}, and the one that was named has "
                f"the id {named}: name the former. To begin anew with another one, finish, or give back what is taken, "
                f"then delete {self._list.location!r}"
            )
        return moves

    def step(self) -> Step:
        """Move the next batches; none if there are none, or another's claim is in front of them.

        On an error whatever has happened counts, and nothing is lost or doubled: call again.
        """
        moves = self._decode_moves(self._list.read())
        if not moves.open:
            self._take()
            moves = self._number()
        if moves.open:
            durable = self._target.put(moves.client_id, moves.open, self._entries_of, floor=moves.durable)
            done = self._ack(moves.open)
            self._retire(moves.open, durable)
            for move in moves.open:
                self._entries.pop(move.location, None)
            if done >= self._threshold:
                self.clean_up()
        return Step(len(moves.open), sum(move.pairs for move in moves.open), self._line())

    def give_back(self) -> int:
        """Let Collectors have what was taken and has no numbers yet; returns how many. No migration may be at work."""
        kept = {move.location for move in self._decode_moves(self._list.read()).open}
        count = 0

        def change(seen: Snapshot) -> bytes | None:
            nonlocal count
            consumer = self._decode(seen)
            after = manifests.given_back(consumer, kept)
            count = sum(after.claimed[where] != ms for where, ms in consumer.claimed.items())
            return encode_consumer_manifest(after) if count else None

        self._consumer.update(change)
        return count

    def close(self) -> None:
        """End the producer. Whatever is not finished is found by the next one."""
        self._entries.clear()
        self._target.close()

    # 1, 2: take and read

    def _take(self) -> None:
        def change(seen: Snapshot) -> bytes | None:
            consumer, producer = self._both(seen)
            after = manifests.take(consumer, producer, self._clock.now_ms(), self._timeout_ms, self._window)
            return None if after == consumer else encode_consumer_manifest(after)

        self._consumer.update(change)

    def _line(self) -> Line:
        return manifests.line(*self._both(self._consumer.read()))

    def _read(self, locations: tuple[str, ...]) -> None:
        """Read these in order, until the window is full; park what cannot be read."""
        for moved in self._entries.keys() - set(locations):  # by another process
            del self._entries[moved]
        size = sum(map(_size_of, self._entries.values()))
        for start in range(0, len(locations), READS_AT_ONCE):
            if size > WINDOW_BYTES:
                return
            missing = [where for where in locations[start : start + READS_AT_ONCE] if where not in self._entries]
            for location, found in zip(missing, self._map(self._try, missing), strict=True):
                if isinstance(found, BufferQueueError):
                    self._set_aside(location, found)
                else:
                    self._entries[location] = found
                    size += _size_of(found)

    def _try(self, location: str) -> list[bytes] | BufferQueueError:
        for read in range(1, READS_OF_CORRUPT + 1):
            try:
                entries = [encode_pair(pair.key, pair.value) for pair in self._fetch(location)]
            except CorruptBatch as error:
                if read == READS_OF_CORRUPT:
                    return error
            except UNREADABLE as error:
                return error
            else:
                return self._target.problem(entries) or entries
        raise AssertionError("the last read returns")

    def _set_aside(self, location: str, error: BufferQueueError) -> None:
        # Only while it is claimed: a batch that another process has moved and cleaned up cannot be read either.
        if self._decode(self._consumer.read()).claimed.get(location) != MOVING_MS:
            return
        why, now_ms = f"{type(error).__name__}: {error}", self._clock.now_ms()
        self._update_parked(lambda file: file.count(location, now_ms, why, 1))
        self._mark_parked(location, (MOVING_MS,))
        log.error("%r cannot be moved and is parked, see %r: %s", location, self._parked.location, why)

    # 3: number

    def _number(self) -> Moves:
        self._read(self._line().ready)

        def change(seen: Snapshot) -> bytes | None:
            moves = self._decode_moves(seen)
            if moves.open:
                return None  # by another process; they are ours to go on with
            ready = self._line().ready  # after `moves` was read, see above
            batches = [(where, len(self._entries[where])) for where in takewhile(self._entries.__contains__, ready)]
            return encode_moves(moves.assigned(batches)) if batches else None

        return self._decode_moves(self._list.update(change))

    # 4: produce, see `new_queue`

    def _entries_of(self, move: Move) -> list[bytes]:
        found: list[bytes] | BufferQueueError | None = self._entries.get(move.location)
        if found is None:
            found = self._try(move.location)
        if isinstance(found, BufferQueueError):
            if self._is_finished(move.location):
                log.warning("%r was finished by another process while this one waited", move.location)
                return []
            found.add_note(
                f"it could be read when it got its numbers, {move.first} to {move.end - 1}, and part of it may be in "
                "the new queue. Nothing was changed: restore the object, and migrate again"
            )
            raise found
        if len(found) != move.pairs:
            raise CorruptBatch(
                f"{move.location!r} had {move.pairs:,} pairs when they got their numbers and has {len(found):,} now: "
                "restore the object, and migrate again",
                location=move.location,
            )
        return found

    def _is_finished(self, location: str) -> bool:
        consumer, producer = self._both(self._consumer.read())
        return location not in consumer.claimed and (location in consumer.done or location not in producer.pending)

    # 5, 6, 7: ack, retire, clean up

    def _ack(self, finished: tuple[Move, ...]) -> int:
        """Returns how many are done and not cleaned up."""
        locations = [move.location for move in finished]

        def change(seen: Snapshot) -> bytes | None:
            consumer, producer = self._both(seen)
            after = manifests.moved(consumer, producer, locations)
            return None if after == consumer else encode_consumer_manifest(after)

        return len(self._decode(self._consumer.update(change)).done)

    def _retire(self, finished: tuple[Move, ...], durable: int) -> None:
        def change(seen: Snapshot) -> bytes | None:
            before = self._decode_moves(seen)
            after = before.retired(finished, durable)
            return None if after is before else encode_moves(after)

        self._list.update(change)

    # The list of moves

    def _decode_moves(self, seen: Snapshot) -> Moves:
        if seen.data is None:
            raise self._list_lost()
        return decode_moves(seen.data, self._list.location)

    def _list_lost(self) -> StateLost:
        return StateLost(
            f"a migration was begun, but its list of moves {self._list.location!r} is gone: restore it, for without it "
            "nobody knows which pairs are in the new queue already",
            location=self._list.location,
        )


def _size_of(entries: list[bytes]) -> int:
    return sum(map(len, entries))
