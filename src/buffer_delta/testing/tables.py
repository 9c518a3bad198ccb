"""Knows what is in the tables, and what must never be.

every commit      rows come in order, behind all that the table holds; each is an entry of the queue, unchanged,
                  and is in no table yet; a batch among the dead letters has rows nowhere else
every dequeue     all entries of the batch are in a table: exactly once, for a second time was noticed before
every ledger      only batches that really cannot be read, and entries that really fail, are given up or block the queue
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from buffer.ledger.entries import listed
from buffer.ledger.plan import Ledger
from buffer.names import ledger_path
from buffer.testing.simulator.scheduler import Process
from buffer.testing.simulator.witness import Appended
from buffer.testing.simulator.world import MANIFEST_PATH, World
from buffer_delta.delta.rules import TableRules, digest_of
from buffer_delta.testing.delta_log import Commit, DeltaLog, Row

POISON = "!"
"""The kind of record that can make its whole batch unreadable."""
RAISES = "p"
"""… that no look finds, and that the preparation of any part fails for that has it."""
KILLS = "k"
"""… that ends the process that reads it, in a look too."""
REFUSED = "t"
"""… that is prepared like any other, and that its table does not take."""
RULED_OUT = "n"
"""… that a constraint of its table forbids, for as long as the table has that constraint."""
FAILING = RAISES + KILLS + REFUSED + RULED_OUT
CONSTRAINT = TableRules(checks=(("no_n", "kind <> 'n'"),))


class Tables:
    """The targets of one queue, and the truth about them."""

    def __init__(self, world: World, names: list[str], dead_letters: str | None) -> None:
        self.logs = [DeltaLog(name) for name in names]
        self.dead_letters = dead_letters
        self._violate = world.scheduler.violate
        self._counts = world.scheduler.counts
        self._queue = world.queue
        self.is_put_back = False
        """The main table's constraint stays as it is from now on."""
        self._where: dict[tuple[int, int], str] = {}
        self._rows_of: Counter[int] = Counter()
        self._last_row: dict[str, tuple[int, int]] = {}
        for log in self.logs:
            log.witnesses.append(self)
        world.server.witnesses.append(self)
        world.queue.may_dequeue.append(self._may_dequeue)
        world.checks.append(self.check_end)

    def change_rules(self) -> TableRules:
        """Give the main table the constraint, or take it away."""
        main = self.logs[0]
        rules = TableRules() if main.look("").rules == CONSTRAINT else CONSTRAINT
        main.commits.append(Commit(None, -1, (), rules))
        self._counts["constraints changed"] += 1
        return rules

    def put_rules_back(self, digest: str) -> None:
        """Give the main table the rules that a plan was begun under, for good: what RouteChanged asks for."""
        self.is_put_back = True
        self._counts["constraints put back"] += 1
        rules = {log.name: log.look("").rules for log in self.logs}
        sides = self.names[1:]
        had_a_say = [names for count in range(len(sides) + 1) for names in combinations(sides, count)]
        if digest not in [digest_of({name: rules[name] for name in (self.names[0], *names)}) for names in had_a_say]:
            self.change_rules()

    def log(self, name: str) -> DeltaLog:
        return next(log for log in self.logs if log.name == name)

    @property
    def names(self) -> list[str]:
        return [log.name for log in self.logs]

    def committed(self, caller: Process, table: DeltaLog, commit: Commit) -> None:
        if commit.app_id is None:
            return
        self._counts["commits"] += 1
        if not self._queue.owns(caller):
            self._counts["commits of the fenced"] += 1
        for row in commit.rows:
            what = f"{caller.name} committed row {row.index} of batch {row.sequence} to {table.name}"
            elsewhere = self._where.setdefault((row.sequence, row.index), table.name)
            if elsewhere is not table.name or self._last_row.get(table.name, (-1, -1)) >= (
                row.sequence,
                row.index,
            ):
                self._violate(f"{what}; it is in {elsewhere} already, or rows behind it are")
            self._last_row[table.name] = (row.sequence, row.index)
            self._rows_of[row.sequence] += 1
            self._check_content(row, what)

    def changed(self, caller: Process, location: str, _before: bytes | None, after: bytes | None) -> None:
        if location != ledger_path(MANIFEST_PATH) or after is None:
            return
        ledger = Ledger.from_bytes(after)
        set_aside = (ledger.plan.quarantined if ledger.plan else None) or {}
        blamed = ledger.blocked.batches if ledger.blocked else {}
        for sequence in (*set_aside, *blamed):
            if not any(record.kind == POISON for record in self._queue.history[sequence].records):
                self._violate(f"{caller.name} gave up batch {sequence}, which can be read")
        single = [ledger.plan.entries if ledger.plan else {}, ledger.blocked.entries if ledger.blocked else {}]
        for sequence, index, reason in (found for entries in single for found in listed(entries)):
            if self._queue.history[sequence].records[index].kind not in FAILING:
                self._violate(f"{caller.name} gave up entry {index} of batch {sequence}, which can be loaded: {reason}")

    def _check_content(self, row: Row, what: str) -> None:
        if row.sequence >= len(self._queue.history):
            self._violate(f"{what}, which was never in the queue")
            return
        batch = self._queue.history[row.sequence]
        if row.index >= 0 and row.value != batch.records[row.index].to_bytes():
            self._violate(f"{what} as {row.value!r}, but it is {batch.records[row.index]}")
        if row.index < 0 and not any(record.kind == POISON for record in batch.records):
            self._violate(f"{what}: the whole batch is a dead letter, but it can be read")
        whole = (row.sequence, -1) in self._where
        if whole and self._rows_of[row.sequence] > 1:
            self._violate(f"{what}, so rows of it are in a table and the whole batch is among the dead letters")

    def _may_dequeue(self, batch: Appended) -> str | None:
        if (batch.sequence, -1) in self._where:
            return None
        missing = [index for index in range(len(batch.records)) if (batch.sequence, index) not in self._where]
        return f"its rows {missing} are in no table" if missing else None

    def check_end(self) -> None:
        """Everything that was ever in the queue is in the tables."""
        for batch in self._queue.history:
            why = self._may_dequeue(batch)
            if why:
                self._violate(f"at the end: batch {batch.sequence}: {why}")
