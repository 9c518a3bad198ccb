"""Turning batches into rows, without Spark: the contract of `buffer_delta.load.ports.Work` on simulated tables.

A record's kind says where it goes: `a` to the main table, `b` to the second one (to the main one, where the
routing has changed or there is no second), `x` does not parse and is a dead letter, if there are any. `n` breaks a
constraint that the main table may have, and is a dead letter then. What there is, a loader's `Setup` says.

What fails, for as long as `Poison` says: `!` makes its whole batch unreadable, now and then; `p` fails whatever
prepares it, every time, and no look at single entries tells; `k` ends the process, in a look too; `t` is refused by its
table alone. `Poison` also says when the machines that read fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

from buffer.consume.fetch import FetchHandle
from buffer.errors import CorruptBatch, ObjectNotFound, StorageError
from buffer.model import BatchDescriptor
from buffer.testing.simulator.scheduler import Scheduler
from buffer.testing.simulator.witness import Record
from buffer.testing.simulator.world import Host
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.state import TableState
from buffer_delta.load.ports import Failure, Group, Trouble
from buffer_delta.testing.delta_log import JobFailed, Row, RowRefused
from buffer_delta.testing.tables import CONSTRAINT, KILLS, POISON, RAISES, REFUSED, RULED_OUT

ROUTINGS = ("routing 0", "routing 1")


@dataclass(frozen=True, slots=True)
class Setup:
    """A loader's configuration."""

    tables: tuple[str, ...]
    """By name, the main one first."""
    dead_letters: str | None = None
    """Which of them takes what was set aside."""
    routing: str = ROUTINGS[0]

    @property
    def digest(self) -> str:
        return f"{self.routing} into {', '.join(self.tables)}"

    def main_alone(self) -> Setup:
        return Setup(self.tables[:1], None, self.routing)

    def routed(self, routing: str) -> Setup:
        return replace(self, routing=routing)

    @classmethod
    def of_digest(cls, digest: str, dead_letters: str | None) -> Setup | None:
        """The one that a plan names; None if it does not name one."""
        routing, found, names = digest.partition(" into ")
        tables = tuple(names.split(", "))
        return cls(tables, dead_letters if dead_letters in tables else None, routing) if found else None


class Poison:
    """When a batch with a poisoned record cannot be read, and when reading fails through no fault of the batch."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        *,
        fixed_at_s: float,
        chance: float,
        calm_at_s: float = 0.0,
        executor_chance: float = 0.0,
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._fixed_at_s = fixed_at_s
        self._chance = chance
        self._calm_at_s = calm_at_s
        self._executor_chance = executor_chance

    def strikes(self) -> bool:
        return self.lasts() and self._random.random() < self._chance

    def lasts(self) -> bool:
        """What fails every time still does."""
        return self._scheduler.now_s < self._fixed_at_s

    def refuses(self, row: Row, rules: TableRules) -> bool:
        """Whether a table has something against a row."""
        if row.index < 0 or not row.checked:
            return False
        kind = Record.from_bytes(row.value).kind
        return (kind == REFUSED and self.lasts()) or (kind == RULED_OUT and rules == CONSTRAINT)

    def executor_fails(self) -> bool:
        return self._scheduler.now_s < self._calm_at_s and self._random.random() < self._executor_chance


class CannotPrepare(Exception):
    """What Spark raises when a job failed for what an entry holds, or when the process that read it ended."""


class SimulatedWork:
    """One loader's `Work`."""

    def __init__(self, host: Host, poison: Poison, setup: Setup) -> None:
        self.setup = setup
        self._host = host
        self._poison = poison
        self._fetch = FetchHandle(host.store, attempts=2, clock=host.clock)

    @property
    def digest(self) -> str:
        return self.setup.digest

    @property
    def known_digests(self) -> tuple[str, ...]:
        return (self.digest,)

    def main_alone(self) -> SimulatedWork:
        return SimulatedWork(self._host, self._poison, self.setup.main_alone())

    @contextmanager
    def prepare(self, part: Group, seen: Callable[[str], TableState]) -> Iterator[Mapping[str, list[Row]]]:
        tables = self.setup
        rows: dict[str, list[Row]] = {name: [] for name in tables.tables}
        is_ruled = seen(tables.tables[0]).rules == CONSTRAINT
        for descriptor in part.descriptors:
            if descriptor.sequence in part.quarantined:
                if tables.dead_letters is not None:
                    rows[tables.dead_letters].append(Row(descriptor.sequence, -1, b""))
                continue
            for index, value, is_aside in self._entries(part, descriptor):
                record = Record.from_bytes(value)
                if is_aside or (record.kind == RULED_OUT and is_ruled and tables.dead_letters is not None):
                    if tables.dead_letters is not None:
                        rows[tables.dead_letters].append(Row(descriptor.sequence, index, value, checked=False))
                    continue
                if record.kind in (RAISES, KILLS) and self._poison.lasts():
                    raise CannotPrepare("no row can be made of some entry")  # a failed job does not say which
                rows[self._route(record)].append(Row(descriptor.sequence, index, value))
        yield self._with_rows(rows)

    def _with_rows(self, rows: dict[str, list[Row]]) -> Mapping[str, list[Row]]:
        """Without the tables that get nothing; the main one always commits."""
        return {name: found for name, found in rows.items() if found or name == self.setup.tables[0]}

    def probe(self, part: Group, seen: Callable[[str], TableState]) -> Sequence[Failure]:
        failures = []
        is_ruled = seen(self.setup.tables[0]).rules == CONSTRAINT
        for descriptor in part.descriptors:
            try:
                found = list(self._entries(part, descriptor))
            except CorruptBatch as error:
                failures.append(Failure(descriptor.sequence, descriptor.location, str(error), "data"))
                continue
            except ObjectNotFound as error:
                failures.append(Failure(descriptor.sequence, descriptor.location, str(error), "missing"))
                continue
            except (StorageError, JobFailed) as error:
                failures.append(Failure(descriptor.sequence, descriptor.location, str(error), "infra"))
                continue
            kinds = {index: Record.from_bytes(value).kind for index, value, is_aside in found if not is_aside}
            if KILLS in kinds.values() and self._poison.lasts():
                raise CannotPrepare("the process that looked has ended")
            failures += [
                Failure(descriptor.sequence, descriptor.location, "breaks a constraint", "data", index)
                for index, kind in kinds.items()
                if kind == RULED_OUT and is_ruled and self.setup.dead_letters is None
            ]
        return failures

    def count(self, descriptor: BatchDescriptor) -> int:
        return len(self._read(descriptor))

    def trouble(self, error: Exception) -> Trouble:
        return Trouble(repr(error), "data" if isinstance(error, CannotPrepare | RowRefused) else "infra")

    def _entries(self, part: Group, descriptor: BatchDescriptor) -> Iterator[tuple[int, bytes, bool]]:
        """Index, content, and whether it is set aside, of what is to be read."""
        values = self._read(descriptor)
        window = part.window(descriptor.sequence, len(values))
        aside = set(part.aside(descriptor.sequence, len(values))[0].tolist())
        return ((index, values[index], index in aside) for index in range(window.start, window.stop))

    def _read(self, descriptor: BatchDescriptor) -> list[bytes]:
        if self._poison.executor_fails():
            raise JobFailed(f"the executor that read {descriptor.location!r} was lost")
        entries = self._fetch.fetch(descriptor).entries
        if any(Record.from_bytes(entry).kind == POISON for entry in entries) and self._poison.strikes():
            raise CorruptBatch(f"{descriptor.location!r} cannot be read", location=descriptor.location)
        return entries

    def _route(self, record: Record) -> str:
        names, dead_letters = self.setup.tables, self.setup.dead_letters
        if record.kind == "x" and dead_letters is not None:
            return dead_letters
        has_second = len(names) > (2 if dead_letters is not None else 1)
        if record.kind == "b" and has_second and self.setup.routing == ROUTINGS[0]:
            return names[1]
        return names[0]
