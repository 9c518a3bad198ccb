"""A value in one object, changed by compare-and-swap, that one owner at a time may change: the holder of its epoch.

The layer between `cas.py`, which knows bytes, and those who give them meaning: `queue.py` (the manifest) and
`journal.py` (the ledger). A change is a pure function from the value that stands to the one that shall stand; this
module parses, checks the owner, decides, writes, and repeats that until it is settled. Whoever took over in between
is noticed by the read that follows a write that was not Won, so a fenced owner changes nothing. Epochs only grow: a
smaller one than the owner's is no successor's, the object was put back from a backup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from buffer.cas import CasObject, Snapshot
from buffer.errors import Fenced, StateLost


class Value(Protocol):
    @property
    def epoch(self) -> int: ...

    def to_bytes(self) -> bytes: ...


V = TypeVar("V", bound=Value | None)
"""What an object can hold; None where there may be no object."""
Owned = TypeVar("Owned", bound=Value)
"""What it must hold for somebody to own it."""


@dataclass(frozen=True, slots=True)
class Applied(Generic[V]):
    """How a change ended."""

    before: V | None
    """What our last write was made from, whether we had an answer to it or not; None if we wrote nothing."""
    after: V
    """What stands now."""


class FencedObject(Generic[V, Owned]):
    """One such object. Not thread-safe: one owner each."""

    def __init__(
        self,
        cas: CasObject,
        *,
        parse: Callable[[Snapshot], V],
        require: Callable[[V], Owned],
        went_back: Callable[[Owned, int], StateLost],
        who: str,
        what: str,
        check: Callable[[bytes], None] = lambda _data: None,
    ) -> None:
        """`require` returns the very value that was read, or raises what its absence means to an owner. `went_back` is
        the error for a value that is older than the epoch given, which was in it. `who` and `what` are the owner's
        and the object's names in messages. `check` raises for bytes that must not be written."""
        self._cas = cas
        self._parse = parse
        self._require = require
        self._went_back = went_back
        self._who = who
        self._what = what
        self._check = check

    def read(self) -> V:
        """The newest value, whoever owns it."""
        return self._parse(self._cas.read())

    def read_owned(self, epoch: int | None) -> Owned:
        """The newest value, if `epoch` still owns it. Raises Fenced, or what `went_back` makes."""
        return self.owned(self.read(), epoch)

    def owned(self, value: V, epoch: int | None) -> Owned:
        found = self._require(value)
        if epoch is not None and 0 < found.epoch < epoch:  # 0: the number after the last one, or made anew
            raise self._went_back(found, epoch)
        if found.epoch != epoch:
            raise Fenced.by_newer(self._who, self._what, epoch=epoch, current=found.epoch)
        return found

    def update(
        self,
        decide: Callable[[V, bool], V],
        *,
        optimistic: bool = False,
        parse: Callable[[Snapshot], V] | None = None,
    ) -> Applied[V]:
        """Write what `decide` makes of the value that stands, until it is Won or there is nothing to write.

        `decide(value, sent)` returns the value that shall stand: the very same object if nothing is to be written.
        `sent` says that this call has sent a write already whose outcome is not known. Its errors end the call, and
        so do those of the store, as in `CasObject.update`. Another `parse` is for those who can do with less.
        """
        parse = parse or self._parse
        made_from: list[V] = []

        def change(seen: Snapshot) -> bytes | None:
            value = parse(seen)
            changed = decide(value, bool(made_from))
            if changed is value:
                return None
            assert changed is not None, "no change ends in nothing"
            data = changed.to_bytes()
            self._check(data)
            made_from.append(value)
            return data

        after = parse(self._cas.update(change, optimistic=optimistic))
        return Applied(made_from[-1] if made_from else None, after)

    def update_owned(
        self, epoch: int | None, decide: Callable[[Owned, bool], V], *, optimistic: bool = False
    ) -> Applied[V]:
        """The same for the owner alone. Raises Fenced, and nothing has changed then."""
        return self.update(lambda value, sent: decide(self.owned(value, epoch), sent), optimistic=optimistic)
