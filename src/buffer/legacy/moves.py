"""Which pairs have which numbers in the new queue: a small JSON file of ours beside the old manifests. Pure.

    {"version":1,"generation":7,"client_id":"migrate/01J…","target":"<id of the new queue>","next":640,"durable":511,
     "batches":9,"pairs":512,"open":[["data/x.json",512,128],…]}

`open` lists the batches that are being moved: location, the number of the first pair, how many pairs. A batch gets its
numbers here before the first of them is produced, and leaves the list after it is done in the old queue. So whoever
comes next, after a crash at any moment, produces the same pairs under the same numbers, and the new queue knows how far
that got. Positions in the old manifest would not do: a clean-up shifts them.

- Numbers are given once, in the order of the queue, and never again: `next` only grows.
- `generation` grows with every write, so no two contents are equal and a write of long ago never matches.
- `durable` is how far the new queue was known to be: one that is behind it is another one, or has lost something.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from buffer.errors import CorruptManifest

VERSION = 1


@dataclass(frozen=True, slots=True)
class Move:
    """One batch of the old queue, and the numbers of its pairs."""

    location: str
    first: int
    pairs: int

    @property
    def end(self) -> int:
        return self.first + self.pairs


@dataclass(frozen=True, slots=True)
class Moves:
    client_id: str
    target: str
    """The id of the new queue."""
    generation: int = 0
    next: int = 0
    open: tuple[Move, ...] = ()
    durable: int = -1
    batches: int = 0
    """How many were moved, over all runs; `pairs` alike."""
    pairs: int = 0

    def assigned(self, batches: Iterable[tuple[str, int]]) -> Moves:
        """Give numbers to the pairs of these batches, in this order."""
        added, after = list(self.open), self.next
        for location, pairs in batches:
            added.append(Move(location, after, pairs))
            after += pairs
        return replace(self, generation=self.generation + 1, next=after, open=tuple(added))

    def retired(self, finished: Collection[Move], durable: int) -> Moves:
        """These are in the new queue and done in the old one. Itself if it lists none of them."""
        gone = [move for move in self.open if move in finished]
        if not gone:
            return self
        return replace(
            self,
            generation=self.generation + 1,
            open=tuple(move for move in self.open if move not in finished),
            durable=max(self.durable, durable),
            batches=self.batches + len(gone),
            pairs=self.pairs + sum(move.pairs for move in gone),
        )


def encode_moves(moves: Moves) -> bytes:
    document = {
        "version": VERSION,
        "generation": moves.generation,
        "client_id": moves.client_id,
        "target": moves.target,
        "next": moves.next,
        "durable": moves.durable,
        "batches": moves.batches,
        "pairs": moves.pairs,
        "open": [[move.location, move.first, move.pairs] for move in moves.open],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def decode_moves(data: bytes, location: str) -> Moves:
    """Raises CorruptManifest."""
    try:
        document = json.loads(data.decode())
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r} is not known here")
        moves = Moves(
            client_id=_text(document["client_id"]),
            target=_text(document["target"]),
            generation=_whole(document["generation"]),
            next=_whole(document["next"]),
            open=tuple(Move(_text(where), _whole(first), _whole(pairs)) for where, first, pairs in document["open"]),
            durable=_whole(document["durable"], -1),
            batches=_whole(document["batches"]),
            pairs=_whole(document["pairs"]),
        )
        if any(move.end > moves.next for move in moves.open):
            raise ValueError("a batch has numbers that were never given")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptManifest(
            f"the list of moves at {location!r} is damaged: {type(error).__name__}: {error}; restore it: without it "
            "nobody knows which pairs are in the new queue already",
            location=location,
        ) from error
    return moves


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a whole number from {least} on")
    return value
