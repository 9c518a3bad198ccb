"""Breaks of the queue: claims, acks, appends, collecting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from buffer import queue
from buffer.attempts import Verdict
from buffer.cas import CasObject, Snapshot
from buffer.consume import cursor as position
from buffer.errors import StorageError
from buffer.fenced import FencedObject
from buffer.gc import collector as gc
from buffer.manifest import Manifest
from buffer.produce import append as commit
from buffer.produce import groups
from buffer.queue import QueueConsumer, QueueProducer
from buffer.store.base import Lost, Outcome, Unknown, Won
from tests.simulation.mutants import FALSE_ALARM, FALSE_WORD, LOST, NOT_THE_OWNER, TWICE, mutant

# Claiming and fencing


@mutant("loader", "queue", sees=NOT_THE_OWNER)
def lost_claim_is_trusted() -> Iterator[None]:
    """The epoch read back is the one we wrote, so it must be ours."""

    def claim(self: QueueConsumer, last_acked: int | None = None) -> Manifest:
        wanted: int | None = None

        def decide(manifest: Manifest, sent: bool) -> Manifest:
            nonlocal wanted
            if sent and manifest.epoch == wanted:
                return manifest
            if last_acked is not None:
                manifest = manifest.dequeue(last_acked)
            claimed = manifest.claim()
            wanted = claimed.epoch
            return claimed

        claimed = self._object.update(decide).after
        self.epoch = claimed.epoch
        return claimed

    with patch.object(QueueConsumer, "claim", claim):
        yield


@mutant("loader", "queue", sees=NOT_THE_OWNER)
def dequeue_without_epoch() -> Iterator[None]:
    """A fenced consumer's ack goes through."""

    def owned(self: FencedObject[Any, Any], value: Any, epoch: int | None) -> Any:
        return value if self._what == "queue" else real(self, value, epoch)

    real = FencedObject.owned
    with patch.object(FencedObject, "owned", owned):
        yield


@mutant("queue", "loader", sees=r"rewrote the queue|wrote epoch \d+ over")
def memory_replaces_what_is_there() -> Iterator[None]:
    """A write made from memory goes through although others wrote since: what they wrote is gone."""

    def write(self: CasObject, change: Callable[[Snapshot], bytes | None]) -> Outcome | None:
        data = change(self._last) if self._last.version is not None else None
        return None if data is None else self.write(self.read(), data)

    with patch.object(CasObject, "_write_from_memory", write):
        yield


@mutant("queue", "collection", sees=f"{LOST}|{FALSE_ALARM}|never given")
def acks_are_unchecked() -> Iterator[None]:
    """The first ack may name any sequence."""

    def unchecked(self: position.Position, sequence: int) -> None:
        """Handed out or not."""

    real = position.Position.ack

    def ack(self: position.Position, sequence: int) -> None:
        if self._last_acked is None:
            self._next_ack = sequence
        real(self, sequence)

    with (
        patch.object(position.Position, "_check_handed_out", unchecked),
        patch.object(position.Position, "ack", ack),
    ):
        yield


# Appending


@mutant("queue", sees=f"{TWICE}|{FALSE_WORD}")
def slot_is_not_looked_at() -> Iterator[None]:
    """An append without an answer is simply tried again behind whatever is there."""
    with patch.object(queue, "decide", lambda *_: Verdict.DEAD):
        yield


@mutant("queue", sees=f"{TWICE}|{FALSE_WORD}")
def group_grows_while_pending() -> Iterator[None]:
    """Batches join a group whose attempt may still land."""
    real = queue.decide

    def decide(attempt: queue.Attempt, version: str | None, manifest: Manifest) -> Verdict:
        verdict = real(attempt, version, manifest)
        return Verdict.DEAD if verdict is Verdict.PENDING else verdict

    with patch.object(queue, "decide", decide):
        yield


@mutant("collection", sees=f"{TWICE}|{FALSE_WORD}")
def renamed_while_pending() -> Iterator[None]:
    """A batch gets a new name while an attempt under the old one may still land."""
    real = QueueProducer._decide

    def decide(self: QueueProducer, attempt: queue.Attempt, seen: Snapshot, manifest: Manifest) -> Verdict:
        verdict = real(self, attempt, seen, manifest)
        return Verdict.DEAD if verdict is Verdict.PENDING and self._is_stale(attempt) else verdict

    with patch.object(QueueProducer, "_decide", decide):
        yield


@mutant("collection", sees=LOST)
def never_renamed() -> Iterator[None]:
    """A batch is appended under the name it was uploaded with, however long that takes."""

    def fresh(self: commit.Committer, group: Any) -> None:
        """Everything is fresh."""

    with (
        patch.object(commit.Committer, "_upload_stale_again", fresh),
        patch.object(QueueProducer, "_is_stale", lambda *_: False),
    ):
        yield


@mutant("collection", sees=FALSE_WORD)
def late_win_is_believed() -> Iterator[None]:
    """An append that landed after days counts as durable without a look at its objects."""
    with patch.object(groups, "safe_until_s", lambda *_: float("inf")):
        yield


@mutant("queue", sees=FALSE_WORD)
def unknown_append_counts_as_done() -> Iterator[None]:
    real = QueueProducer._send

    def send(self: QueueProducer, *args: Any) -> Outcome:
        outcome = real(self, *args)
        return Won("whatever") if isinstance(outcome, Unknown) else outcome

    with patch.object(QueueProducer, "_send", send):
        yield


@mutant("queue", sees=FALSE_WORD)
def gives_up_as_if_nothing_happened() -> Iterator[None]:
    """When time is up while an attempt may still land, the caller is told that it is safe to call again."""

    def give_up(self: QueueProducer, _attempt: Any, tried: int, _trouble: Any) -> range:
        raise self._cas.contention(tried)

    with patch.object(QueueProducer, "_give_up", give_up):
        yield


@mutant("queue", sees=TWICE)
def lost_race_is_believed() -> Iterator[None]:
    """`Lost` is taken as a sure sign that the write did not land."""
    real = QueueProducer._decide

    def send(self: QueueProducer, attempt: Any, is_repeat: bool) -> Outcome:
        outcome = real_send(self, attempt, is_repeat)
        self.__dict__["lost"] = isinstance(outcome, Lost)
        return outcome

    def decide(self: QueueProducer, *args: Any) -> Verdict:
        return Verdict.DEAD if self.__dict__.get("lost") else real(self, *args)

    real_send = QueueProducer._send
    with patch.object(QueueProducer, "_send", send), patch.object(QueueProducer, "_decide", decide):
        yield


@mutant("queue", sees=LOST)
def append_before_upload() -> Iterator[None]:
    """A batch whose upload got no answer is appended all the same."""
    real = commit.Committer._put_under_new_name

    class Careless:
        def __init__(self, store: Any) -> None:
            self._store = store

        def put(self, location: str, data: bytes) -> None:
            with suppress(StorageError):
                self._store.put(location, data)

    def put(self: commit.Committer, batch: Any) -> None:
        store, self._store = self._store, Careless(self._store)
        try:
            real(self, batch)
        finally:
            self._store = store

    with patch.object(commit.Committer, "_put_under_new_name", put):
        yield


# Collecting


def _collector_rule(change: Callable[[dict[str, Any]], None]) -> Any:
    real = gc.deletable

    def deletable(ulids: Any, manifest: Any, version: Any, **rest: Any) -> gc.Decision:
        ulids = list(ulids)
        rest["ulids"] = ulids
        change(rest)
        rest.pop("ulids")
        return real(ulids, manifest, version, **rest)

    return patch.object(gc, "deletable", deletable)


@mutant("collection", sees=LOST)
def collector_looks_once() -> Iterator[None]:
    def change(rule: dict[str, Any]) -> None:
        rule["previous"] = gc.Look("another version", frozenset(rule["ulids"]))

    with _collector_rule(change):
        yield


@mutant("collection", sees=LOST)
def collector_needs_no_change() -> Iterator[None]:
    """Two looks, but they count although the manifest did not change in between."""

    def change(rule: dict[str, Any]) -> None:
        if rule["previous"] is not None:
            rule["previous"] = replace(rule["previous"], version="another version")

    with _collector_rule(change):
        yield


@mutant("collection", sees=LOST)
def collector_has_no_grace() -> Iterator[None]:
    real = gc.Collector._list

    def listed(self: gc.Collector) -> Any:
        self._grace_ms = -(10**9)
        return real(self)

    with patch.object(gc.Collector, "_list", listed):
        yield
