"""The section `clients`: what is kept of the marks that leave, what is lost, and what a client is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffer.errors import MarksLost
from buffer.ledger.clients import (
    Clients,
    Fate,
    Hole,
    Standing,
    WrongField,
    absorb,
    begun,
    fate,
    forgotten,
    from_document,
    hole,
    loss_accepted,
    opened_at,
    standing,
)
from buffer.manifest import Manifest, PackedMetadata
from buffer.marks import Mark, encode_mark, marked

PATH = "ingest/manifest.ledger"


def add(manifest: Manifest, client: str | None, client_seq: int = 0, name: str | None = None) -> Manifest:
    calls = PackedMetadata.pack([0], [1000])
    metadata = calls if client is None else marked(calls, encode_mark(client, client_seq))
    return manifest.append_all([(f"ingest/{name or f'batch-{manifest.next_sequence}'}", metadata)])


def queue(*batches: tuple[str, int] | None) -> Manifest:
    manifest = Manifest.empty()
    for mark in batches:
        manifest = add(manifest, *(mark or (None,)))
    return manifest


def opened(manifest: Manifest | None = None) -> Clients:
    return opened_at(begun(None), manifest or Manifest.empty())


# Keeping


def test_should_keep_the_marks_of_what_leaves() -> None:
    manifest = queue(("a", 1), ("b", 5), ("a", 2), ("a", 3))
    section = absorb(opened(), manifest, 2)
    assert section == Clients(True, 2, {"a": Mark(2, 2, "batch-2"), "b": Mark(5, 1, "batch-1")})


def test_should_need_no_section_while_nobody_uses_marks() -> None:
    assert absorb(None, queue(None, None), 1) is None


def test_should_keep_how_far_it_looked_although_nothing_had_a_mark() -> None:
    assert absorb(opened(), queue(None, None), 1) == Clients(True, 1)


def test_should_change_nothing_when_repeated_or_done_by_a_process_that_is_behind() -> None:
    manifest = queue(("a", 1), ("a", 2), ("a", 3))
    section = absorb(opened(), manifest, 1)
    assert section is not None
    assert absorb(section, manifest, 1) is section
    assert absorb(section, manifest, 0) is section
    assert absorb(section, manifest.dequeue(1), 1) is section
    assert absorb(section, manifest.dequeue(1), 9) == absorb(section, manifest, 2)


def test_should_say_how_far_a_client_got_before_and_after_its_entries_left() -> None:
    manifest = queue(("a", 1), ("b", 5), ("a", 2))
    assert standing("a", manifest, opened(), location=PATH) == Standing("a", Mark(2, 2, "batch-2"), 3)
    section = absorb(opened(), manifest, 2)
    assert standing("a", manifest.dequeue(2), section, location=PATH).durable_seq == 2
    assert standing("b", manifest.dequeue(2), section, location=PATH).durable_seq == 5
    assert standing("c", manifest.dequeue(2), section, location=PATH).durable_seq == -1


def test_should_follow_a_client_by_the_manifest_alone_as_long_as_it_shows_all() -> None:
    start = standing("a", queue(("a", 1)), opened(), location=PATH)
    longer = queue(("a", 1), ("b", 9), ("a", 2))
    assert start.moved_on(longer) == Standing("a", Mark(2, 2, "batch-2"), 3)
    assert start.moved_on(longer.dequeue(0)) == Standing("a", Mark(2, 2, "batch-2"), 3)
    assert start.moved_on(longer.dequeue(1)) is None, "sequence 1 was never looked at"


# Losing


def test_should_notice_a_reader_that_knows_no_marks() -> None:
    manifest = queue(("a", 1), ("a", 2), ("a", 3)).dequeue(1)
    with pytest.raises(MarksLost, match="sequences 0 to 1 are lost") as caught:
        standing("a", manifest, opened(), location=PATH)
    assert (caught.value.through, caught.value.first_sequence, caught.value.location) == (-1, 2, PATH)


def test_should_remember_the_loss_although_the_next_reader_knows_marks() -> None:
    section = absorb(opened(), queue(("a", 1), ("a", 2), ("a", 3)).dequeue(1), 2)
    assert section == Clients(True, 2, {"a": Mark(3, 2, "batch-2")}, Hole(0, 1))
    with pytest.raises(MarksLost):
        standing("a", Manifest.empty(), section, location=PATH)


def test_should_go_on_when_an_operator_accepts_the_loss() -> None:
    manifest = queue(("a", 1), ("a", 2), ("a", 3)).dequeue(1)
    accepted = loss_accepted(opened(), manifest)
    assert accepted == Clients(True, 1)
    assert standing("a", manifest, accepted, location=PATH).durable_seq == 3
    assert loss_accepted(accepted, manifest) is accepted


def test_should_call_it_a_loss_when_marks_stand_in_a_queue_whose_ledger_is_gone() -> None:
    manifest = queue(("a", 1), None)
    assert opened_at(begun(None), manifest).lost == Hole(0, 1)
    kept = absorb(None, manifest, 1)
    assert kept is not None
    assert kept.lost == Hole(0, 1)
    with pytest.raises(MarksLost, match="deleted or made anew"):
        standing("a", manifest, None, location=PATH)
    with pytest.raises(MarksLost, match="deleted or made anew"):
        standing("a", manifest, begun(None), location=PATH)


def test_should_notice_a_client_that_goes_back() -> None:
    before = Standing("a", Mark(7, 3, "x"), 4)
    with pytest.raises(MarksLost, match=r"was at client_seq 7, now the ledger .* says -1"):
        standing("a", Manifest.empty(), opened(), location=PATH, earlier=before)


def test_should_forget_one_client() -> None:
    section = absorb(opened(), queue(("a", 1), ("b", 1)), 1)
    assert section is not None
    assert set(forgotten(section, "a").marks) == {"b"}
    assert forgotten(section, "c") is section


def test_should_not_call_it_a_loss_when_a_reader_removes_what_it_saw_before_the_section_was_there() -> None:
    """The late reader saw two unmarked entries and no section; it removes them after everything else."""
    seen = queue(None, None)
    section = begun(absorb(None, seen, 1))
    section = opened_at(section, seen)
    assert hole(section, seen.dequeue(1)) is None


# What became of an append


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (None, Fate.DEAD),
        (Mark(4, 9, "mine-2"), Fate.DEAD),
        (Mark(6, 9, "mine-2"), Fate.LANDED),
        (Mark(6, 9, "theirs"), Fate.OVERTAKEN),
        (Mark(5, 9, "theirs"), Fate.OVERTAKEN),
        (Mark(8, 9, "theirs"), Fate.OVERTAKEN),
    ],
)
def test_should_always_know_what_became_of_an_append(mark: Mark | None, expected: Fate) -> None:
    assert fate(["ingest/mine-1", "ingest/mine-2"], 5, Standing("a", mark, 10)) is expected


# The document


def test_should_read_back_what_it_writes() -> None:
    section = Clients(True, 9, {"a": Mark(2**64 - 1, 9, "x.batch"), "é": Mark(0, 0, "")}, Hole(0, 3))
    assert from_document(json.loads(json.dumps(section.to_document()))) == section
    assert from_document(Clients().to_document()) == Clients()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"opened": 1}, "clients.opened is 1"),
        ({"through": True}, "clients.through is True"),
        ({"through": -2}, "clients.through is -2"),
        ({"marks": []}, "clients.marks is"),
        ({"marks": {"a": [1, 2]}}, r"clients.marks\['a'\] is not"),
        ({"marks": {"a": [1, True, "x"]}}, r"clients.marks\['a'\] is not"),
        ({"marks": {"a": [-1, 2, "x"]}}, "client_seq -1"),
        ({"marks": {"a": [2**64, 2, "x"]}}, "client_seq 18446744073709551616"),
        ({"marks": {"a": [1, 10, "x"]}}, "sequence 10, beyond 9"),
        ({"marks": {"": [1, 2, "x"]}}, "client_id"),
        ({"marks": {"x" * 256: [1, 2, "x"]}}, "client_id"),
        ({"lost": [3, 2]}, "clients.lost is"),
        ({"lost": "all"}, "clients.lost is"),
        ({"more": 1}, "unknown field clients.more"),
    ],
)
def test_should_refuse_a_section_that_means_nothing(change: dict[str, object], message: str) -> None:
    with pytest.raises(WrongField, match=message):
        from_document({**Clients(True, 9).to_document(), **change})


def test_should_refuse_a_section_with_a_field_missing() -> None:
    document = Clients(True, 9).to_document()
    del document["lost"]
    with pytest.raises(WrongField, match=r"missing field clients.lost"):
        from_document(document)


def test_should_stay_small_with_a_thousand_clients() -> None:
    marks = {f"client-{i:04d}-0123456789abcdef": Mark(10**12 + i, 10**9, f"{i:026d}.batch") for i in range(1000)}
    document = Clients(True, 10**9, marks).to_document()
    assert len(json.dumps({"clients": document}, indent=1).encode()) < 200_000


# A model: nothing that anybody does between two steps of another makes a client's high-water wrong


class MarksMachine(RuleBasedStateMachine):
    """Producers, readers and a foreign reader over one manifest and one section, each step of theirs by itself.

    Whatever was read before a step is kept, and writes are compare-and-swap, as in the shells. The truth is kept
    beside it: the largest client_seq that ever landed, and what left the queue without being kept.
    """

    CLIENTS = st.sampled_from(["a", "b"])

    @initialize()
    def start(self) -> None:
        self.manifest = Manifest.empty()
        self.section: Clients | None = None
        self.truth = {"a": -1, "b": -1}
        self.first_mark: int | None = None
        self.robbed: set[int] = set()
        self.opening: dict[str, Manifest] = {}
        self.producers: dict[str, Manifest] = {}
        self.readers: dict[int, tuple[Manifest, int, bool]] = {}

    # An unmarked producer: one step is enough

    @precondition(lambda self: self.manifest.next_sequence < 12)
    @rule()
    def append_without_mark(self) -> None:
        self.manifest = add(self.manifest, None)

    # A producer with a client id

    @precondition(lambda self: self.section is None)
    @rule()
    def begin(self) -> None:
        self.section = begun(self.section)

    @precondition(lambda self: self.section is not None)
    @rule(client=CLIENTS)
    def read_to_open(self, client: str) -> None:
        self.opening[client] = self.manifest

    @rule(client=CLIENTS)
    def open(self, client: str) -> None:
        seen = self.opening.pop(client, None)
        if seen is not None:
            assert self.section is not None
            self.section = opened_at(self.section, seen)

    @rule(client=CLIENTS)
    def read_to_append(self, client: str) -> None:
        self.producers[client] = self.manifest

    @rule(client=CLIENTS, client_seq=st.integers(0, 6))
    def append(self, client: str, client_seq: int) -> None:
        seen = self.producers.pop(client, None)
        if seen is None or self.section is None or not self.section.opened:
            return
        try:
            now = standing(client, seen, self.section, location=PATH)
        except MarksLost:
            assert self.robbed, "a false alarm"
            return
        if seen != self.manifest:
            return  # the write loses
        assert now.durable_seq == self.truth[client], "judged by a wrong high-water"
        if client_seq > now.durable_seq:
            self.first_mark = self.manifest.next_sequence if self.first_mark is None else self.first_mark
            self.manifest = add(self.manifest, client, client_seq)
            self.truth[client] = client_seq

    # Readers that know marks

    @precondition(lambda self: len(self.manifest) > 0)
    @rule(reader=st.integers(0, 1), count=st.integers(1, 3))
    def read_to_dequeue(self, reader: int, count: int) -> None:
        self.readers[reader] = (self.manifest, self.manifest.first_sequence + count - 1, False)

    @rule(reader=st.integers(0, 1))
    def keep(self, reader: int) -> None:
        if reader in self.readers:
            seen, through, _ = self.readers[reader]
            self.section = absorb(self.section, seen, through)
            if self.section is None or self.section.lost is None:  # it saw them before they were taken away
                self.robbed -= {entry.sequence for entry in seen if entry.sequence <= through}
            self.readers[reader] = (seen, through, True)

    @rule(reader=st.integers(0, 1))
    def dequeue(self, reader: int) -> None:
        seen, through, kept = self.readers.get(reader, (None, 0, False))
        if kept and seen == self.manifest:
            self.manifest = self.manifest.dequeue(through)
            del self.readers[reader]

    # And one that does not

    @precondition(lambda self: len(self.manifest) > 0 and self.section is not None and self.section.opened)
    @rule()
    def dequeue_without_keeping(self) -> None:
        assert self.section is not None
        if self.manifest.first_sequence > self.section.through:
            self.robbed.add(self.manifest.first_sequence)
        self.manifest = self.manifest.dequeue(self.manifest.first_sequence)

    @invariant()
    def high_water_is_right_or_the_loss_is_known(self) -> None:
        if self.section is None or not self.section.opened:
            assert max(self.truth.values()) == -1
            return
        for client, true_seq in self.truth.items():
            try:
                now = standing(client, self.manifest, self.section, location=PATH)
            except MarksLost:
                assert self.robbed, "a false alarm"
            else:
                assert now.durable_seq == true_seq
                assert not self.robbed


MarksMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestMarks = MarksMachine.TestCase
