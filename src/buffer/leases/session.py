"""The two objects of a queue with leases, manifest and ledger, and how verbs get into the ledger.

**One epoch for all workers**, kept in the section: the queue is theirs while the manifest, the ledger and the section
name the same one. A worker remembers none of its own, so another worker that claims anew takes nobody's place.

Opening, each step right wherever a process stops:

    no section      the manifest must never have been claimed, else what others acked in between is lost (LedgerLost,
                    way out: adopt). Write the section with epoch 0: from now on the queue is one with leases
    one epoch       join: nothing is written
    several         claim the manifest, then put that epoch into ledger and section. Died in between: the next one
                    claims again. Another was faster: its epoch is higher, look again and join
    in between      somebody has claimed the manifest and is not in the ledger: most likely a worker that will be there
                    in a moment, for a pool starts all its workers at once. Look again for a while; then as above

A reader that takes the queue over (`Consumer.new`) puts its epoch into the ledger, and not into the section: every
worker finds that at its next write, and is fenced. A reader that knows no ledger only claims the manifest; workers
find that at their next consume. Between a worker's claim and its write the epochs differ for a moment, so that
difference is believed only if it lasts.

**Time** is told by `time.py`: a write that needs it before it is known waits until the store was asked. Opening moves
no time: whoever only opens has nothing to say about leases.

**Lost replies**: every write has a number and leaves it in the section. If it is found there, that very write stands,
and what was decided with it is the answer. If not, it never will: its version is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.config import LeaseConfig
from buffer.errors import Fenced, InvalidConfig, LedgerLost, QueueBound
from buffer.journal import Journal
from buffer.leases.tidying import Tidying
from buffer.leases.time import QueueTime
from buffer.ledger.from_workers import is_between, loader_of, queue_behind
from buffer.ledger.lease_rules import claimed, opened
from buffer.ledger.lease_steps import Stamp
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.manifest import Manifest
from buffer.queue import QueueConsumer

R = TypeVar("R")

SECTIONS_OBEYED = ("plan", "clients")
"""Sections beside its own that a worker obeys: it keeps off a queue with a plan, and keepers care for the marks."""

SETTLING = Backoff(first_s=0.02, max_s=0.5, attempts_max=12)
"""How long epochs may differ before that is believed: about three seconds, far longer than claim and write take."""


class NoLeases(InvalidConfig):
    """The queue has no settings for leases, and none were given."""


class _Unsettled(Exception):
    """Manifest and ledger do not fit: another worker is between its claim and its write, or wrote between our reads.

    `known` is a sequence that the ledger tells of and the manifest does not have yet.
    """

    def __init__(self, epoch: int, current: int, known: int) -> None:
        super().__init__(epoch, current, known)
        self.epoch, self.current = epoch, current
        self.known = known


class _TimeUnknown(Exception):
    """The store must be asked before this worker may say what time it is."""


@dataclass(frozen=True, slots=True)
class Look:
    """What stands: the section, and the manifest that it was read with."""

    leases: Leases
    manifest: Manifest
    queue_id: str

    @property
    def waiting(self) -> range:
        return range(self.manifest.first_sequence, self.manifest.next_sequence)


class LeaseSession:
    """One worker's hold on manifest and ledger. Not thread-safe."""

    def __init__(
        self,
        queue: QueueConsumer,
        journal: Journal[LeaseLedger],
        clock: Clock,
        worker: str,
        modified: Callable[[], int | None],
    ) -> None:
        """`modified` says when the ledger was written, by the store's clock."""
        self.queue = queue
        self.worker = worker
        self.tidying = Tidying()
        self._journal = journal
        self._clock = clock
        self._number = 0
        self._time = QueueTime(clock, modified, self._rewrite)

    # Opening

    def open(self, config: LeaseConfig | None, *, adopt: bool, claim: bool) -> None:
        """Join the workers of this queue, or be the first. Raises QueueBound, LedgerLost, InvalidConfig.

        Without `claim` a queue that another reader has taken over is left to it: Fenced.
        """

        def walk(*, patient: bool) -> None:
            self._journal.until(lambda: self._open_step(config, adopt, claim, patient) or None)

        try:
            self._until_settled(lambda: walk(patient=True))
        except Fenced:
            if not claim:
                raise
            walk(patient=False)

    def _open_step(self, config: LeaseConfig | None, adopt: bool, claim: bool, patient: bool) -> bool:
        """One step towards an open queue; whether it is open. With `patient` raises _Unsettled in between."""
        seen, ledger = self._journal.look()
        manifest = self.queue.look()
        section = self._obeyed(ledger)
        if section is None:
            if config is None:
                raise NoLeases(
                    f"the queue {self.queue.manifest_path!r} has no leases yet: open it with a LeaseConfig first",
                    key="config",
                    value=None,
                )
            if manifest.epoch > 0 and not adopt:
                again = self._journal.read()  # another worker may have opened the queue between our two reads
                if again is None or again.leases is None:
                    raise self._used_before()
                return False
            made = ledger or LeaseLedger(queue_id=self._clock.new_ulid())
            first = opened(config, self._stamp(0), epoch=0, first_sequence=manifest.first_sequence)
            self._journal.write(seen, made.changed(leases=first))
            return False
        if config is not None and config != section.config:
            raise _other_settings(config, section.config)
        assert ledger is not None
        if section.epoch == ledger.epoch == manifest.epoch > 0:
            return True
        if patient and is_between(section, ledger_epoch=ledger.epoch, queue_epoch=manifest.epoch):
            raise _Unsettled(section.epoch, manifest.epoch, section.furthest)
        if not claim and section.epoch > 0:
            raise Fenced.by_newer("worker", "queue", epoch=section.epoch, current=max(ledger.epoch, manifest.epoch))
        self._check_behind(section.furthest, manifest)
        self._enter(self.queue.claim())
        return False

    def _enter(self, manifest: Manifest) -> None:
        """Put the epoch that was claimed into ledger and section, unless a newer one stands there."""

        def decide(ledger: LeaseLedger | None, _sent: bool) -> LeaseLedger | None:
            section = self._obeyed(ledger)
            if ledger is None or section is None:
                raise self._lost()
            if ledger.epoch >= manifest.epoch:
                return ledger
            entered = claimed(section, self._stamp(0), manifest.epoch, manifest.first_sequence)
            return ledger.changed(epoch=manifest.epoch, leases=entered)

        self._journal.update(decide)

    # Looking and writing

    def look(self) -> Look:
        """Both objects as they stand. Raises Fenced, LedgerLost."""
        return self._settled(lambda manifest: self._look(manifest))

    def _look(self, manifest: Manifest) -> Look:
        ledger = self._journal.read()
        section = self._owned(ledger)
        self._check_fits(section, manifest)
        return Look(section, manifest, ledger.queue_id if ledger else "")

    def apply(self, verb: Callable[[Leases, Stamp], tuple[Leases, R]]) -> tuple[Leases, R]:
        """Write what a verb makes of the section, once. Raises its errors, Fenced, and those of the store.

        Costs one write if nobody else has written since. Returns the section that the verb was applied to last, as
        it was after it.
        """
        return self._apply(verb, None, {})

    def apply_to_queue(self, verb: Callable[[Leases, Stamp, Manifest], tuple[Leases, R]]) -> tuple[Manifest, Leases, R]:
        """The same for verbs that need the manifest, which is read first; an unchanged one costs no transfer."""

        sent: dict[int, tuple[Leases, R]] = {}

        def act(manifest: Manifest) -> tuple[Manifest, Leases, R]:
            return (manifest, *self._apply(lambda section, by: verb(section, by, manifest), manifest, sent))

        return self._settled(act)

    def _settled(self, act: Callable[[Manifest], R]) -> R:
        """Repeat `act` on a fresh manifest while epochs differ. Raises Fenced if they do so for long."""
        return self._until_settled(lambda: act(self.queue.look()))

    def _until_settled(self, act: Callable[[], R]) -> R:
        last: _Unsettled | None = None
        for _ in SETTLING.attempts(self._clock):
            try:
                return act()
            except _Unsettled as error:
                last = error
                # The ledger was read after the manifest, so another worker may have seen more of the queue.
                self._check_behind(error.known, self.queue.look())
        assert last is not None
        raise Fenced.by_newer("worker", "queue", epoch=last.epoch, current=last.current)

    def _apply(
        self,
        verb: Callable[[Leases, Stamp], tuple[Leases, R]],
        manifest: Manifest | None,
        sent: dict[int, tuple[Leases, R]],
    ) -> tuple[Leases, R]:
        """`sent` is what this call wrote so far, by number: one of them may have landed without a word."""
        while True:
            try:
                return self._apply_once(verb, manifest, sent)
            except _TimeUnknown:
                self._time.ask()  # after that it is known for a while: this ends

    def _apply_once(
        self,
        verb: Callable[[Leases, Stamp], tuple[Leases, R]],
        manifest: Manifest | None,
        sent: dict[int, tuple[Leases, R]],
    ) -> tuple[Leases, R]:
        answer: list[tuple[Leases, R]] = []
        frontier = (0, 0)

        def decide(ledger: LeaseLedger | None, _sent: bool) -> LeaseLedger | None:
            nonlocal frontier
            answer.clear()
            section = self._owned(ledger)
            assert ledger is not None
            for number, result in sent.items():
                if section.has_receipt(self.worker, number):
                    answer.append(result)
                    return ledger
            if manifest is not None:
                self._check_fits(section, manifest)
            now_ms = self._time.now_ms(section.time_ms)
            if now_ms is None:
                raise _TimeUnknown
            by = self._stamp(now_ms)
            after, told = verb(section, by)
            answer.append((after, told))
            if after is section:
                return ledger
            sent[by.number] = (after, told)
            frontier = (section.finished_through, after.finished_through)
            return ledger.changed(leases=after)

        self._journal.update(decide, optimistic=True)
        self.tidying.moved(*frontier)
        return answer[-1]

    def now_ms(self, leases: Leases) -> int:
        """For those who only look: the clock is believed where nobody has asked the store yet."""
        known = self._time.now_ms(leases.time_ms)
        return max(self._clock.now_ms(), self._time.running_ms(leases.time_ms)) if known is None else known

    def dequeue(self, leases: Leases) -> None:
        """Take the finished prefix out of the manifest. Raises Fenced; else it may be called again at any time."""
        self.queue.epoch = leases.epoch
        self.queue.dequeue(leases.finished_through)

    # Checking

    def _owned(self, ledger: LeaseLedger | None) -> Leases:
        section = self._obeyed(ledger)
        if ledger is None or section is None:
            raise self._lost()
        if ledger.epoch != section.epoch:
            raise Fenced.by_newer("worker", "ledger", epoch=section.epoch, current=ledger.epoch)
        return section

    def _check_fits(self, section: Leases, manifest: Manifest) -> None:
        known = section.furthest
        if manifest.epoch != section.epoch or known >= manifest.next_sequence:
            raise _Unsettled(section.epoch, manifest.epoch, known)

    def _obeyed(self, ledger: LeaseLedger | None) -> Leases | None:
        if ledger is None:
            return None
        ledger.check_sections(SECTIONS_OBEYED, location=self._journal.location)
        app_id = loader_of(ledger)
        if app_id is not None:
            raise QueueBound(
                f"this queue feeds the app {app_id!r}: a loader acks whole ranges, so workers would take "
                "entries away from it. Use a queue of its own for leases",
                bound_app_id=app_id,
                bound_tables=tuple(ledger.sections["plan"].get("tables") or ()),
            )
        return ledger.leases

    def _check_behind(self, known: int, manifest: Manifest) -> None:
        """A manifest that was read after the ledger has all that the ledger tells of. Raises QueueBehindConsumer."""
        if known >= manifest.next_sequence:
            raise queue_behind(known, manifest.next_sequence, self.queue.manifest_path)

    def _stamp(self, clock_ms: int) -> Stamp:
        self._number += 1
        return Stamp(self.worker, self._number, clock_ms)

    def _rewrite(self) -> None:
        """Write the ledger as it is, so that the store tells what time it is now."""

        def again(ledger: LeaseLedger | None, sent: bool) -> LeaseLedger | None:
            self._owned(ledger)
            assert ledger is not None
            return ledger if sent else ledger.changed()

        self._journal.update(again)

    def _lost(self) -> LedgerLost:
        return LedgerLost(
            f"the ledger {self._journal.location!r} is lost: it has no leases any more. Without it acked batches would "
            "be delivered again, and counts start anew. Put it back, or open the queue with adopt=True",
            location=self._journal.location,
        )

    def _used_before(self) -> LedgerLost:
        return LedgerLost(
            f"the queue {self.queue.manifest_path!r} was consumed before, and the ledger {self._journal.location!r} "
            "knows of no leases: either it was deleted, and acked batches would be delivered again, or a plain "
            "consumer reads this queue. Put the ledger back; or pass adopt=True to begin with what the queue holds now",
            location=self._journal.location,
        )


def _other_settings(asked: LeaseConfig, kept: LeaseConfig) -> InvalidConfig:
    names = [name for name in LeaseConfig.setting_names() if getattr(asked, name) != getattr(kept, name)]
    differences = ", ".join(f"{name} is {getattr(kept, name)!r}, not {getattr(asked, name)!r}" for name in names)
    return InvalidConfig(
        f"the queue has other settings: {differences}. They belong to the queue: open it without a LeaseConfig to use "
        "its own, or change them with `configure`",
        key=names[0],
        value=getattr(asked, names[0]),
    )
