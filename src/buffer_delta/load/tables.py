"""One loader's tables, each as its last look saw it, and the work that fills them.

A look is a read of a table's log: it costs a request, so what was seen is kept (`known`) for what may be a little old.
What a commit stands on is looked at for that commit: `Seen` makes one look for all who ask within one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from buffer.ledger.binding import Binding
from buffer.ledger.plan import Ledger, Plan
from buffer_delta.delta.state import TableState
from buffer_delta.load.members import Digests, Members
from buffer_delta.load.ports import Target, Work


class LoaderTables:
    """The targets of one loader by their names, the main one first."""

    def __init__(self, targets: Sequence[Target], open_table: Callable[[str], Target] | None) -> None:
        """`open_table` makes a target of a name that only the ledger has."""
        assert targets, "a loader needs a table"
        self.targets = {target.name: target for target in targets}
        assert len(self.targets) == len(targets), "every table has a name of its own"
        self.members = self._members_of(targets)
        self.open_table = open_table
        self.app_id = ""
        """What the tables are asked about; known once the loader has entered."""
        self.known: dict[str, TableState] = {}

    def _members_of(self, targets: Sequence[Target]) -> Members:
        return Members(tuple(target.name for target in targets), tuple(target.place for target in targets))

    def binding(self, app_id: str | None) -> Binding:
        """What binds a queue to these tables."""
        main = self.targets[self.members.main]
        return Binding(app_id, self.members.names, self.members.keys, main.identity())

    # Looking

    def look(self, name: str) -> TableState:
        state = self.known[name] = self.targets[name].look(self.app_id)
        return state

    def look_again(self) -> None:
        for name in self.targets:
            self.look(name)

    def look_at_all(self, ledger: Ledger) -> dict[str, TableState]:
        """Our tables, and those that a plan of an older release waits for."""
        app_id = ledger.app_id or ""
        self.known = {name: target.look(app_id) for name, target in self.targets.items()}
        others = self.members.others(ledger)
        assert not others or self.open_table is not None, "a loader can open what its ledger names"
        return self.known | {name: self.open_table(name).look(app_id) for name in others if self.open_table}

    # What the last look says

    def are_missing(self, plan: Plan) -> bool:
        """Whether a table that tells how far we are lacks the plan's range."""
        telling = self.targets if plan.tables is None else (self.members.main,)
        return any(self.known[name].position < plan.last for name in telling)

    def ids(self) -> dict[str, str | None]:
        """For plans."""
        return {self.members.key(name): self.known[name].table_id for name in self.targets}


class Seen(dict[str, TableState]):
    """Tables as they were when somebody first asked for them."""

    def __init__(self, look: Callable[[str], TableState]) -> None:
        super().__init__()
        self._look = look

    def __missing__(self, name: str) -> TableState:
        state = self[name] = self._look(name)
        return state


@dataclass(frozen=True, slots=True)
class Works:
    """The work of one loader."""

    own: Work
    alone: Work
    """… for ranges that go to the main table alone."""

    @classmethod
    def of(cls, work: Work, targets: Mapping[str, Target]) -> Works:
        return cls(work, work if len(targets) == 1 else work.main_alone())

    def on(self, plan: Plan, members: Members) -> Work:
        return self.own if members.are_all_in(plan) else self.alone

    def digests(self) -> Digests:
        return Digests(self.own.digest, self.alone.digest)
