"""Client marks over the queue and its ledger: opening, asking, keeping. The shell around `ledger.clients`.

    ClientGuard   a producer's: how far its client is, asked before every append
    MarkKeeper    a reader's: puts the marks of entries into the ledger before they leave the queue (`marked_queue`)
    ClientLedger  an operator's: list, forget, accept a loss

**Manifest first, ledger second**, always: marks move from the one to the other, and only ever in that direction.

A guard looks at the ledger when it opens. From then on the manifest alone tells, as long as every entry that was
appended since is still there to be looked at; where some are gone already, the ledger has their marks. So appending
with a client id costs no request more than without one, unless the readers are faster than the producer's own looks.

**Twins.** A guard that is `alone` knows the mark that it left in the queue last, or found there when it opened. Any
other one there was left by somebody else: a second producer with the same client id, or an earlier run whose last write
landed late. Then nothing more is appended, even if the number to come is higher: where numbers have gaps, two producers
would take turns for ever, and each would take the other's calls for its own. Whoever shares a client id on purpose, and
agrees on the numbers by other means (`produce.marked`), is not alone.

What a process that dies leaves behind:
- while it opens: a section that is begun, or open, with no marks in it. The next one goes on
- after keeping, before the dequeue: marks of entries that are still in the queue. They are true either way
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from buffer.attempts import AppendGroup, Attempt, ClientSpan, Verdict
from buffer.cas import CAS_BACKOFF
from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.errors import IdempotencyConflict, InvalidInput, ManifestLost
from buffer.journal import Journal
from buffer.leaving import Leaving
from buffer.ledger.clients import (
    Clients,
    ClientsView,
    Fate,
    Standing,
    absorb,
    begun,
    fate,
    forgotten,
    is_ahead,
    loss_accepted,
    opened_at,
    rewound,
    standing,
)
from buffer.manifest import Manifest
from buffer.marks import Mark, batch_name, client_id_bytes, newest_marks
from buffer.queue import QueueConsumer, manifest_observer
from buffer.store.base import CanSwap


class ClientLedger:
    """The section `clients` of one queue's ledger. Not thread-safe."""

    def __init__(
        self, store: CanSwap, manifest_path: str, clock: Clock, *, timeout_s: float = CAS_BACKOFF.timeout_s
    ) -> None:
        self._clock = clock
        self._manifest_path = manifest_path
        self._journal = Journal(store, manifest_path, clock, ClientsView, timeout_s=timeout_s)

    @property
    def location(self) -> str:
        return self._journal.location

    def read(self) -> Clients | None:
        """The section; None where nobody has used a client id yet."""
        view = self._journal.read()
        return None if view is None else view.clients

    def open(self, read_manifest: Callable[[], Manifest]) -> None:
        """Make sure that marks are kept from now on: see `ledger.clients` for why this takes two writes."""
        section = self.read()
        if section is None:
            section = self._change(begun)
        if section is not None and not section.opened:
            manifest = read_manifest()  # after the section was there
            self._change(lambda found: opened_at(begun(found), manifest))

    def keep(self, manifest: Manifest, through: int) -> None:
        """Keep the marks of the entries up to `through`, which are about to leave `manifest`."""
        self._change(lambda found: absorb(found, manifest, through))

    def check_left(self, client_ids: Iterable[str], manifest: Manifest) -> None:
        """Raises InvalidInput, naming one of these clients whose calls still wait in the queue: they count while they
        do, and are kept here when they leave. So whoever forgets it forgets nothing. Read the manifest before that."""
        waiting = newest_marks(manifest)
        for name in client_ids:
            if name in waiting:
                raise InvalidInput(
                    f"client {name!r} still has calls in the queue, the newest at sequence {waiting[name].sequence} of "
                    f"{self._manifest_path!r}, so it would not start anew: let a reader finish them, then forget it"
                )

    def forget(self, client_ids: Iterable[str]) -> None:
        """Let these clients start anew. Raises InvalidInput, naming one that has no mark; then nothing has changed."""
        names = list(client_ids)

        def without(found: Clients | None) -> Clients | None:
            for name in names:
                if found is None or name not in found.marks:
                    raise InvalidInput(f"the ledger {self.location!r} has no mark of a client {name!r}")
                found = forgotten(found, name)
            return found

        self._change(without)

    def accept_loss(self, read_manifest: Callable[[], Manifest]) -> None:
        """Go on without the marks that are lost, or with a manifest that was put back. Raises InvalidInput if that one
        has never held anything."""
        section = self.read()
        manifest = read_manifest()  # after the section: see `is_ahead`
        is_back = section is not None and is_ahead(section, manifest)
        if is_back and not manifest.next_sequence:
            raise InvalidInput(
                f"the ledger {self.location!r} speaks of a queue that held something, and its manifest has never held "
                "anything: put that back, or start a new queue with a manifest_path in another folder"
            )
        accepted = rewound if is_back else loss_accepted
        self._change(lambda found: None if found is None else accepted(found, manifest))

    def _change(self, decide: Callable[[Clients | None], Clients | None]) -> Clients | None:
        def changed(view: ClientsView | None, _sent: bool) -> ClientsView | None:
            before = None if view is None else view.clients
            after = decide(before)
            if after is before:
                return view
            if view is None:
                return ClientsView(queue_id=self._clock.new_ulid(), clients=after)
            return view.changed(clients=after)

        view = self._journal.update(changed).after
        return None if view is None else view.clients


class MarkKeeper:
    """Called by the queue with what leaves it, before it does. Needs no epoch: whatever it keeps is true anyway."""

    def __init__(
        self, store: CanSwap, manifest_path: str, clock: Clock, *, timeout_s: float = CAS_BACKOFF.timeout_s
    ) -> None:
        self._ledger = ClientLedger(store, manifest_path, clock, timeout_s=timeout_s)

    def __call__(self, leaving: Leaving) -> None:
        self._ledger.keep(leaving.manifest, leaving.through)


def marked_queue(config: ConsumerConfig, store: CanSwap, clock: Clock) -> QueueConsumer:
    """The queue of a reader, whoever it is: the marks of what leaves are kept. Nothing is claimed yet."""
    path, timeout_s = config.manifest_path, config.cas_timeout_s
    keeper = MarkKeeper(store, path, clock, timeout_s=timeout_s)
    observe = manifest_observer("consumer")
    return QueueConsumer(store, path, clock, keepers=[keeper], timeout_s=timeout_s, observe=observe)


class ClientGuard:
    """Keeps one client's calls from getting into the queue twice. One owner at a time, like its queue."""

    def __init__(
        self,
        client_id: str,
        store: CanSwap,
        manifest_path: str,
        clock: Clock,
        *,
        timeout_s: float = CAS_BACKOFF.timeout_s,
        alone: bool = True,
    ) -> None:
        client_id_bytes(client_id)
        self.client_id = client_id
        self._alone = alone
        self._own: Mark | None = None
        """What we left in the queue last, or found there when we opened."""
        self._ledger = ClientLedger(store, manifest_path, clock, timeout_s=timeout_s)
        self._manifest_path = manifest_path
        self._read_manifest: Callable[[], Manifest] | None = None
        self._standing: Standing | None = None

    def open(self, read_manifest: Callable[[], Manifest]) -> int:
        """How far the client is: the largest client_seq in the queue, -1 for none. Raises MarksLost, ManifestLost."""
        self._read_manifest = read_manifest
        self._ledger.open(read_manifest)
        now = self._look(read_manifest())
        self._own = now.mark
        return now.durable_seq

    @property
    def own(self) -> Mark | None:
        """The mark that it left in the queue last, or found there when it opened."""
        return self._own

    def check(self, manifest: Manifest, group: AppendGroup) -> None:
        """Raises IdempotencyConflict if a call of the group is in the queue, or a twin is at work, and MarksLost."""
        now = self._look(manifest)
        first = _span(group).first  # the smallest decides: what is at or below the mark must not get in with the rest
        if first <= now.durable_seq:
            raise self._overtaken(first, now.durable_seq)
        if self._is_twins(now.mark):
            own_seq = -1 if self._own is None else self._own.client_seq
            raise IdempotencyConflict.of_twin(self.client_id, first, durable_seq=now.durable_seq, own_seq=own_seq)

    def decide(self, manifest: Manifest, attempt: Attempt) -> Verdict:
        """What became of an append whose slots have left the queue. Raises as `check` does."""
        now, first = self._look(manifest), _span(attempt).first
        match fate(attempt.locations, first, now):
            case Fate.LANDED:
                return Verdict.LANDED
            case Fate.DEAD:
                return Verdict.DEAD
            case Fate.OVERTAKEN:
                raise self._overtaken(first, now.durable_seq)

    def won(self, attempt: Attempt) -> None:
        """Our own calls were the newest up to there: the manifest that they were added to was looked at."""
        self._own = Mark(_span(attempt).last, attempt.sequences[-1], batch_name(attempt.locations[-1]))
        self._standing = Standing(self.client_id, self._own, attempt.sequences.stop)

    def _is_twins(self, mark: Mark | None) -> bool:
        return self._alone and mark != self._own

    def _look(self, manifest: Manifest) -> Standing:
        """Where the client stands, by a manifest that was just read."""
        known = self._standing
        now = known.moved_on(manifest) if known else None
        if now is None:
            section = self._ledger.read()  # after the manifest
            now = standing(self.client_id, manifest, section, location=self._ledger.location, earlier=known)
            if section is not None and is_ahead(section, manifest):
                self._check_went_on(section)
        self._standing = now
        return now

    def _check_went_on(self, section: Clients) -> None:
        """The ledger is ahead of a manifest read before it. Of one that is read now it cannot be, unless that was put
        back; then the marks of what is appended there would not be kept when it leaves."""
        assert self._read_manifest is not None, "a guard opens before it is asked"
        manifest = self._read_manifest()
        if is_ahead(section, manifest):
            raise ManifestLost(
                f"the manifest {self._manifest_path!r} has only ever held sequences below {manifest.next_sequence}, "
                f"and client marks were kept up to {section.through}: it was restored from a backup. Put the newest "
                "one back; or, to go on with this one, stop all producers and accept it: buffer clients forget --lost",
                location=self._manifest_path,
                next_sequence=manifest.next_sequence,
                seen_next_sequence=section.through + 1,
            )

    def _overtaken(self, first_seq: int, durable_seq: int) -> IdempotencyConflict:
        return IdempotencyConflict.of(self.client_id, first_seq, durable_seq=durable_seq, in_queue=None)


def _span(numbered: AppendGroup | Attempt) -> ClientSpan:
    assert numbered.client_seqs is not None, "a client's calls have numbers"
    return numbered.client_seqs
