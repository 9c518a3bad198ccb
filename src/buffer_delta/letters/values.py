"""Dead letters as values; what a redrive asks of the table that holds them and of the queue that gets them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Key(NamedTuple):
    """Which letter: in this order they go back."""

    sequence: int
    entry: int
    location: str


@dataclass(frozen=True, slots=True)
class Letter:
    """An entry that could not become a row."""

    key: Key
    payload: bytes
    metadata: bytes
    """Of the call that produced it; empty where the table does not tell."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Letters on their way back, as the table has it written down: one batch, under one number."""

    number: int
    queue_id: str
    place: str
    """Where that queue is, for people."""
    letters: Sequence[Letter]
    """In the order of their keys, which is that of the batch."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did."""

    letters: int
    """That went back, or were found to be back already, by this run."""
    batches: int
    finished: int
    """Of them, letters of an earlier redrive that had been interrupted, or of one that runs at this moment."""


class Letters(Protocol):
    """The dead-letter table. Every method looks at its newest version, but `chosen`."""

    def last_number(self) -> int:
        """The largest number that a claim ever had, -1 for none."""
        ...

    def chosen(self, after: Key | None) -> Sequence[Key]:
        """The next letters, in order, that were there and free when this redrive began; a batch's worth, or none."""
        ...

    def claim(self, number: int, queue_id: str, place: str, keys: Sequence[Key]) -> None:
        """Write down that these letters go back under this number, but for those that are claimed.

        One transaction. It does nothing, without a word, if a claim with this number or a larger one is there.
        """
        ...

    def free(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Those of them that nobody has claimed."""
        ...

    def pending(self) -> Claim | None:
        """The claim with the smallest number that is not marked."""
        ...

    def mark(self, number: int, sequence: int | None) -> None:
        """Write down that the letters of this claim are back, as the batch with this sequence. Again: no change."""
        ...


class Home(Protocol):
    """The queue that the letters go to, under the mark of one client."""

    @property
    def queue_id(self) -> str: ...

    @property
    def place(self) -> str: ...

    def last_number(self) -> int:
        """The largest number under which something is in the queue or was, -1 for none."""
        ...

    def put(self, number: int, letters: Sequence[Letter]) -> int | None:
        """Append one batch under this number, unless the queue knows the number or a larger one.

        Its sequence, where that can be told. Raises the store's errors: then call again, before any larger number.
        """
        ...
