"""The ledger's section `clients`: how far each client got, for the entries that left the queue. Pure.

    {"opened": true, "through": 41, "marks": {"sensor-7": [12, 40, "01….batch"]}, "lost": null}

    marks     of each client its newest durable call among the sequences up to `through`: client_seq, sequence, batch
    through   no mark of a sequence up to here is missing from `marks`
    opened    before it is, nobody appends a mark
    lost      the sequences that left unseen, until an operator accepts it

**High-water** of a client = the larger of its marks in the manifest and here, read in that order. Marks are put here
before the entries leave (`absorb`), so whatever the manifest does not show any more stands here. Read the other way
round, a mark could move behind the reader's back.

Why each step is right wherever a process stops:
- `absorb` keeps what is true already, and only ever adds: largest mark, largest `through`. Doing it twice, too early
  (the dequeue after it fails), or by a process that was fenced long ago changes nothing for anybody.
- **Opening takes two writes.** A reader that sees no section keeps nothing and writes nothing, so it may still remove
  entries after a section appeared. It read the manifest before that. So: put the section there (`begun`); read the
  manifest; only then say that there is no mark below its end (`opened_at`), and only then append a mark. Whatever the
  late reader removes lies below that end. A client that stops in between is finished by the next one.
- A manifest that starts beyond `through + 1` was dequeued by somebody who knows no marks: `lost`. Nothing is guessed
  around it: producers with client ids stop. It stays until an operator accepts it, even if the next reader that does
  know marks moves `through` past the hole.
- Marks in a queue without a section: the ledger is not the one they were written beside. That is `lost`, too.
- A manifest that has not reached `through` was put back from a backup, and gives those sequences to other batches.
  `absorb` would pass over their marks, so nobody appends one there (`is_ahead`), until an operator accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Self

from buffer.errors import MarksLost
from buffer.ledger.envelope import Envelope, Fields, WrongField
from buffer.manifest import Manifest
from buffer.marks import CLIENT_ID_BYTES_MAX, CLIENT_SEQ_MAX, Mark, batch_name, newest_marks


@dataclass(frozen=True, slots=True)
class Hole:
    """Sequences that left the queue, and nobody kept their marks."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Clients:
    """What the section says."""

    opened: bool = False
    through: int = -1
    marks: Mapping[str, Mark] = field(default_factory=dict)
    lost: Hole | None = None

    def to_document(self) -> dict[str, Any]:
        return {
            "opened": self.opened,
            "through": self.through,
            "marks": {client: [m.client_seq, m.sequence, m.batch] for client, m in self.marks.items()},
            "lost": None if self.lost is None else [self.lost.first, self.lost.last],
        }


# Opening


def begun(section: Clients | None) -> Clients:
    """The section, there at last: from now on readers keep marks."""
    return Clients() if section is None else section


def opened_at(section: Clients, manifest: Manifest) -> Clients:
    """Open the section, given a manifest that was read after the section was there."""
    if section.opened:
        return section
    found = newest_marks(manifest)
    # There cannot be marks before the section was opened, unless it is not the one they were written beside.
    lost = section.lost or (Hole(0, manifest.next_sequence - 1) if found else None)
    through = max(section.through, manifest.next_sequence - 1)
    return replace(section, opened=True, through=through, marks=_joined(section.marks, found), lost=lost)


# Keeping


def absorb(section: Clients | None, manifest: Manifest, through: int) -> Clients | None:
    """Keep the marks of what leaves: the entries of `manifest` up to `through`. The same object if nothing changes.

    Read the section after the manifest. A queue that nobody ever used with a client id needs none: None stays None.
    """
    through = min(through, manifest.next_sequence - 1)
    first = max(manifest.first_sequence, 0 if section is None else section.through + 1)
    if section is not None and first > through:
        return section  # all that leaves is counted
    found = newest_marks(manifest, first=first, through=through)
    if section is None:
        return replace(Clients(), through=through, marks=found, lost=Hole(0, through)) if found else None
    lost = section.lost or hole(section, manifest)
    if found and not section.opened and lost is None:
        lost = Hole(0, through)
    return replace(section, through=through, marks=_joined(section.marks, found), lost=lost)


def _joined(marks: Mapping[str, Mark], more: Mapping[str, Mark]) -> Mapping[str, Mark]:
    if not more:
        return marks
    joined = dict(marks)
    for client, mark in more.items():
        known = joined.get(client)
        if known is None or mark.client_seq >= known.client_seq:
            joined[client] = mark
    return joined


# Losing


def hole(section: Clients, manifest: Manifest) -> Hole | None:
    """What left the manifest unseen, if anything did. Read the section after the manifest."""
    if section.lost is not None:
        return section.lost
    if section.opened and manifest.first_sequence > section.through + 1:
        return Hole(section.through + 1, manifest.first_sequence - 1)
    return None


def is_ahead(section: Clients, manifest: Manifest) -> bool:
    """Whether marks were kept of sequences that the manifest has not reached. It was put back, if it was read after the
    section; if before, it may just be old."""
    return section.through >= manifest.next_sequence


def rewound(section: Clients, manifest: Manifest) -> Clients:
    """An operator goes on with a manifest that was put back: sequences count from there. How far clients are stays."""
    through = manifest.next_sequence - 1
    marks = {client: replace(mark, sequence=min(mark.sequence, through)) for client, mark in section.marks.items()}
    return replace(section, through=through, marks=marks, lost=None)


def loss_accepted(section: Clients, manifest: Manifest) -> Clients:
    """An operator has looked: what was in the hole is forgotten. The same object if nothing was lost."""
    if hole(section, manifest) is None:
        return section
    return replace(section, lost=None, through=max(section.through, manifest.first_sequence - 1))


def forgotten(section: Clients, client_id: str) -> Clients:
    """Without this client: it may start anew. The same object if it has no mark here."""
    if client_id not in section.marks:
        return section
    return replace(section, marks={client: mark for client, mark in section.marks.items() if client != client_id})


# Asking


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one client got, counting every sequence below `next_sequence`."""

    client_id: str
    mark: Mark | None
    next_sequence: int

    @property
    def durable_seq(self) -> int:
        """The largest client_seq in the queue so far; -1 for none."""
        return -1 if self.mark is None else self.mark.client_seq

    def moved_on(self, manifest: Manifest) -> Standing | None:
        """The same for a newer manifest, from its entries alone.

        None where entries left that were never looked at: only the section knows what was in them.
        """
        if manifest.first_sequence > self.next_sequence:
            return None
        found = newest_marks(manifest, first=self.next_sequence, client_id=self.client_id).get(self.client_id)
        return Standing(self.client_id, _newer(self.mark, found), manifest.next_sequence)


def standing(
    client_id: str, manifest: Manifest, section: Clients | None, *, location: str, earlier: Standing | None = None
) -> Standing:
    """How far the client got, by a manifest and the section read after it. Raises MarksLost, naming `location`.

    A client that was further at an `earlier` look has lost its marks, too: they never go back by themselves.
    """
    if section is None or not section.opened:
        raise MarksLost(
            f"the ledger {location!r} has lost its client marks: it was deleted or made anew. Put it back; or, if no "
            "call can be repeated any more, open the producer again",
            location=location,
        )
    lost = hole(section, manifest)
    if lost is not None:
        raise MarksLost(
            f"the client marks of sequences {lost.first} to {lost.last} are lost: a reader that knows no marks removed "
            f"them, or the ledger {location!r} was replaced. A call that is repeated now could be in the queue twice. "
            "Find out how far each client got, then accept the loss: buffer clients forget --lost",
            location=location,
            through=section.through,
            first_sequence=manifest.first_sequence,
        )
    found = newest_marks(manifest, client_id=client_id).get(client_id)
    now = Standing(client_id, _newer(section.marks.get(client_id), found), manifest.next_sequence)
    if earlier is not None and now.durable_seq < earlier.durable_seq:
        raise MarksLost(
            f"client {client_id!r} was at client_seq {earlier.durable_seq}, now the ledger {location!r} says "
            f"{now.durable_seq}: the client was forgotten, or the ledger was replaced by another. Put it back; or, if "
            "this is as it should be, open the producer again",
            location=location,
            through=section.through,
            first_sequence=manifest.first_sequence,
        )
    return now


class Fate(Enum):
    """What became of an append all of whose slots were dequeued before anybody looked."""

    LANDED = "landed"
    DEAD = "dead"
    OVERTAKEN = "overtaken"
    """Another producer has used the same numbers or later ones. Ours may be among what is there, or not."""


def fate(locations: Sequence[str], first_seq: int, standing: Standing) -> Fate:
    """What became of the append of these batches, whose calls start at `first_seq`. Never unknown.

    It was one write, so either all of it landed or nothing. Had it landed, the mark of its last batch would count.
    """
    mark = standing.mark
    if mark is None or mark.client_seq < first_seq:
        return Fate.DEAD
    return Fate.LANDED if mark.batch in map(batch_name, locations) else Fate.OVERTAKEN


def _newer(known: Mark | None, found: Mark | None) -> Mark | None:
    if known is None or found is None:
        return found if known is None else known
    return found if found.client_seq >= known.client_seq else known


# For those who pass by


def known_sequences(ledger: Envelope) -> int:
    """How many sequences the marks in a ledger speak of: where there are any, there must have been a manifest."""
    document = ledger.sections.get(ClientsView.SECTION or "")
    try:
        return 0 if document is None else from_document(document).through + 1
    except WrongField:
        return 0  # whoever opens the section says so


# Reading


def from_document(document: Mapping[str, Any]) -> Clients:
    """Raises WrongField: a guess could put a call into the queue twice."""
    fields = Fields("clients.", document, ("opened", "through", "marks", "lost"))
    through, lost = fields.take("through", int), fields.take("lost", list, None)
    if through < -1:
        raise WrongField(f"clients.through is {through}, not a sequence or -1")
    return Clients(
        opened=fields.take("opened", bool),
        through=through,
        marks={client: _mark(client, value, through) for client, value in fields.take("marks", dict).items()},
        lost=None if lost is None else _hole(lost),
    )


def _mark(client: str, value: Any, through: int) -> Mark:
    name = f"clients.marks[{client[:80]!r}]"
    if type(value) is not list or [type(part) for part in value] != [int, int, str]:
        raise WrongField(f"{name} is not [client_seq, sequence, batch]")
    mark = Mark(*value)
    if not 0 < len(client.encode("utf-8", "surrogatepass")) <= CLIENT_ID_BYTES_MAX:
        raise WrongField(f"{name} is not a client_id: it needs 1 to {CLIENT_ID_BYTES_MAX} bytes")
    if not 0 <= mark.client_seq <= CLIENT_SEQ_MAX:
        raise WrongField(f"{name} has client_seq {mark.client_seq}, which no mark can hold")
    if not 0 <= mark.sequence <= through:
        raise WrongField(f"{name} has sequence {mark.sequence}, beyond {through}")
    return mark


def _hole(value: list[Any]) -> Hole:
    if [type(part) for part in value] != [int, int] or not 0 <= value[0] <= value[1]:
        raise WrongField(f"clients.lost is {value!r}, not [first, last]")
    return Hole(*value)


@dataclass(frozen=True, slots=True)
class ClientsView(Envelope):
    """The ledger with the section `clients` opened. Any client and any reader writes it, whatever the epoch."""

    SECTION: ClassVar[str | None] = "clients"
    USER: ClassVar[str] = "client"

    clients: Clients | None = None

    @classmethod
    def way_out(cls) -> str:
        return (
            "Put it back. There is no other copy of the marks of calls that left the queue, of a loader's plan, or of "
            "leases. Only where nobody needs those, stop all who use the queue, delete it, and see for yourself how "
            "far each client id got"
        )

    def section(self) -> dict[str, Any] | None:
        return None if self.clients is None else self.clients.to_document()

    @classmethod
    def opened(cls, header: dict[str, Any], document: dict[str, Any] | None) -> Self:
        return cls(**header, clients=None if document is None else from_document(document))
