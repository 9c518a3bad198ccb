"""Breaks of what keeps a client's calls from being in the queue twice, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from buffer import clients
from buffer.attempts import AppendGroup, ClientSpan
from buffer.clients import ClientGuard, ClientLedger
from buffer.leaving import Leaving
from buffer.ledger import clients as section
from buffer.ledger.clients import Clients, Fate, Standing
from buffer.manifest import Manifest
from buffer.produce import append
from buffer.produce.append import Committer
from buffer.queue import QueueConsumer
from tests.simulation.mutants import TWICE, mutant

AGAIN = rf"{TWICE}|which is at \d+"
"""A call is in the queue for the second time."""
NEVER = r"is not in the queue, but its producer was told so|never came"
FALSE_ALARM = r"no mark was lost"
FALSE_DURABLE = r"said to be durable"


@mutant("clients", sees=f"{FALSE_ALARM}|{AGAIN}")
def marks_move_after_the_dequeue() -> Iterator[None]:
    real = QueueConsumer.dequeue

    def dequeue(self: QueueConsumer, through: int, location: str | None = None) -> Manifest:
        before = self.read()
        keepers, self._keepers = self._keepers, ()
        try:
            after = real(self, through, location)
        finally:
            self._keepers = keepers
        for keep in keepers:
            keep(Leaving(before, through))
        return after

    with patch.object(QueueConsumer, "dequeue", dequeue):
        yield


@mutant("clients", sees=f"{FALSE_ALARM}|{AGAIN}")
def ledger_is_read_before_the_manifest() -> Iterator[None]:
    def open_(self: ClientGuard, read_manifest: Callable[[], Manifest]) -> int:
        self._read_manifest = read_manifest
        self._ledger.open(read_manifest)
        found = self._ledger.read()
        manifest = read_manifest()
        self._standing = section.standing(self.client_id, manifest, found, location=self._ledger.location)
        self._own = self._standing.mark
        return self._standing.durable_seq

    with patch.object(ClientGuard, "open", open_):
        yield


@mutant("clients", sees=NEVER)
def conflict_is_taken_for_success_after_a_failed_call() -> Iterator[None]:
    """The calls behind one that failed go on, so its repetition looks like a replay."""
    with patch.object(Committer, "_stop", lambda *_: []):
        yield


@mutant("clients", sees=AGAIN)
def group_is_judged_by_its_largest_number() -> Iterator[None]:
    """Without the look at who was there, which sees it before it does harm."""
    real = append.append_group

    def group(batches: Sequence[Any], span: ClientSpan | None = None) -> Any:
        return real(batches, span and ClientSpan(span.last, span.last))

    with patch.object(append, "append_group", group), patch.object(ClientGuard, "_is_twins", lambda *_: False):
        yield


@mutant("clients", sees=AGAIN)
def only_the_first_attempt_is_judged() -> Iterator[None]:
    """An attempt that died is repeated on another manifest without a second look."""
    real = ClientGuard.check

    def check(self: ClientGuard, manifest: Manifest, group: AppendGroup) -> None:
        assert group.client_seqs is not None
        if self.__dict__.get("judged") != group.client_seqs.first:
            self.__dict__["judged"] = group.client_seqs.first
            real(self, manifest, group)

    with patch.object(ClientGuard, "check", check):
        yield


@mutant("clients", sees=FALSE_ALARM)
def section_is_opened_in_one_write() -> Iterator[None]:
    """A reader that saw no section may still remove what was appended after the look at the manifest."""

    def open_(self: ClientLedger, read_manifest: Callable[[], Manifest]) -> None:
        found = self.read()
        if found is None or not found.opened:
            manifest = read_manifest()
            self._change(lambda found: section.opened_at(section.begun(found), manifest))

    with patch.object(ClientLedger, "open", open_):
        yield


@mutant("clients", sees=AGAIN)
def loss_is_forgotten_by_the_next_reader() -> Iterator[None]:
    real = clients.absorb

    def absorb(found: Clients | None, manifest: Manifest, through: int) -> Clients | None:
        kept = real(found, manifest, through)
        return kept if kept is None or kept is found else replace(kept, lost=None)

    with patch.object(clients, "absorb", absorb):
        yield


@mutant("clients", sees=AGAIN)
def loss_is_guessed_around() -> Iterator[None]:
    with patch.object(section, "hole", lambda *_: None):
        yield


@mutant("clients", sees=FALSE_DURABLE)
def numbers_alone_tell_what_landed() -> Iterator[None]:
    """A mark at our number is taken for our own, although a twin may have written it."""

    def fate(_locations: Sequence[str], first_seq: int, standing: Standing) -> Fate:
        return Fate.LANDED if standing.durable_seq >= first_seq else Fate.DEAD

    with patch.object(clients, "fate", fate):
        yield


@mutant("clients", sees=r"behind a twin's call")
def higher_numbers_need_no_look_at_who_was_there() -> Iterator[None]:
    """Two producers with one client id whose numbers have gaps take turns."""
    with patch.object(ClientGuard, "_is_twins", lambda *_: False):
        yield


@mutant("clients", sees=AGAIN)
def what_left_unseen_is_not_asked_about() -> Iterator[None]:
    """A client is followed by the manifest alone, even where entries came and went between two looks."""
    real = Standing.moved_on

    def moved_on(self: Standing, manifest: Manifest) -> Standing | None:
        return real(self, manifest) or Standing(self.client_id, self.mark, manifest.first_sequence)

    with patch.object(Standing, "moved_on", moved_on):
        yield
