"""The ledger over compare-and-swap: reads it, asks a pure decision, writes. What the users of a ledger share.

Knows no section: a `Journal` is made for a view of the file (`ledger.plan.Ledger`, say), and the decisions of that
view's module do the rest.

Every write is made from what stands, so a lost reply is harmless: the next look finds either our content (done) or
the content before it (write again). Only the holder of an epoch writes under it, so within one epoch a section has
one author; hence its writes may be made from memory (`cas.py`), and the others read first. An older process that
wakes up is refused by the version of the file, and finds the newer epoch when it looks.

What is written is read first, as every reader will: a ledger that nobody can read would stop all users of the queue.
That costs nothing, for the content that stands after a write need not be read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from buffer.cas import CAS_BACKOFF, CasObject, Snapshot
from buffer.clock import Clock
from buffer.errors import CorruptLedger, InvalidInput, StateLost
from buffer.fenced import Applied, FencedObject
from buffer.ledger.envelope import Envelope
from buffer.names import ledger_path
from buffer.store.base import CanSwap

L = TypeVar("L", bound=Envelope)
T = TypeVar("T")


class Journal(Generic[L]):
    """One user's view of the ledger. Not thread-safe."""

    def __init__(
        self,
        store: CanSwap,
        manifest_path: str,
        clock: Clock,
        view: type[L],
        *,
        timeout_s: float = CAS_BACKOFF.timeout_s,
    ) -> None:
        self.location = ledger_path(manifest_path)
        self._view = view
        self._cas = CasObject(store, self.location, clock, timeout_s=timeout_s)
        self._object: FencedObject[L | None, L] = FencedObject(
            self._cas,
            parse=self._parse,
            require=self._require,
            went_back=self._went_back,
            who=view.USER,
            what="ledger",
            check=self._check_readable,
        )
        self._made: tuple[bytes, L] | None = None
        """What was made last, and what it says."""

    def read(self) -> L | None:
        """The newest ledger; None if there is none."""
        return self._object.read()

    def read_owned(self, epoch: int) -> L:
        """The newest ledger, if nobody entered after `epoch` did. Raises Fenced, LedgerLost."""
        return self._object.read_owned(epoch)

    def update(
        self,
        decide: Callable[[L | None, bool], L | None],
        *,
        salvage: Callable[[bytes, CorruptLedger], L | None] | None = None,
        optimistic: bool = False,
    ) -> Applied[L | None]:
        """Write what `decide(ledger, sent)` makes of the ledger that stands; see `FencedObject.update`.

        For those who need no epoch, bring a new one, or share one that their section names. `salvage` is asked about a
        ledger that cannot be read.
        """

        def parse(seen: Snapshot) -> L | None:
            try:
                return self._parse(seen)
            except CorruptLedger as error:
                if salvage is None or seen.data is None:
                    raise
                return salvage(seen.data, error)

        return self._object.update(decide, parse=parse, optimistic=optimistic)

    def update_owned(self, epoch: int, decide: Callable[[L], L]) -> L:
        """The same under an epoch that was entered with, and without a read if nobody else writes."""
        after = self._object.update_owned(epoch, lambda ledger, _sent: decide(ledger), optimistic=True).after
        return self._require(after)

    # For steps that look at other objects between the read and the write

    def look(self) -> tuple[Snapshot, L | None]:
        seen = self._cas.read()
        return seen, self._parse(seen)

    def write(self, seen: Snapshot, ledger: L) -> None:
        """Replace what was seen, if it is still there: look again to know."""
        data = ledger.to_bytes()
        self._check_readable(data)
        self._cas.write(seen, data)

    def until(self, step: Callable[[], T | None]) -> T:
        """Repeat `step` until it answers, through failures of the store that may pass; as often as any write."""
        return self._cas.until(step)

    def _parse(self, seen: Snapshot) -> L | None:
        if self._made is not None and seen.data is self._made[0]:
            return self._made[1]
        return None if seen.data is None else self._view.from_bytes(seen.data, location=self.location)

    def _check_readable(self, data: bytes) -> None:
        try:
            self._made = (data, self._view.from_bytes(data, location=self.location))
        except CorruptLedger as error:
            raise InvalidInput(f"nobody could read the ledger after this, so nothing was written: {error}") from error

    def _require(self, ledger: L | None) -> L:
        if ledger is None or ledger.unusable:
            raise self._view.lost(self.location, "it is gone" if ledger is None else ledger.unusable or "")
        return ledger

    def _went_back(self, ledger: L, epoch: int) -> StateLost:
        return self._view.lost(
            self.location,
            f"it went back to epoch {ledger.epoch}, and this {self._view.USER} had entered it with {epoch}: it was "
            "restored from a backup",
        )
