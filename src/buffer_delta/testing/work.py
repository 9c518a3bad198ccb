"""Turning batches into rows, without Spark: the contract of `buffer_delta.contracts.Work` on simulated tables.

A record's kind says where it goes: `a` to the main table, `b` to the second one (to the main one, where the
routing has changed or there is no second), `x` does not parse and is a dead letter. `!` makes its whole batch
unreadable, for as long as `Poison` says, which also says when the machines that read fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

from buffer.errors import CorruptBatch, ObjectNotFound, StorageError
from buffer.fetch import FetchHandle
from buffer.model import BatchDescriptor
from buffer.testing.simulator.scheduler import Scheduler
from buffer.testing.simulator.witness import Record
from buffer.testing.simulator.world import Host
from buffer_delta.contracts import Failure
from buffer_delta.testing.delta_log import JobFailed, Row
from buffer_delta.testing.tables import POISON, Tables

ROUTINGS = ("routing 0", "routing 1")


class Poison:
    """When a batch with a poisoned record cannot be read, and when reading fails through no fault of the batch."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        *,
        mended_at_s: float,
        chance: float,
        calm_at_s: float = 0.0,
        executor_chance: float = 0.0,
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._mended_at_s = mended_at_s
        self._chance = chance
        self._calm_at_s = calm_at_s
        self._executor_chance = executor_chance

    def strikes(self) -> bool:
        return self._scheduler.now_s < self._mended_at_s and self._random.random() < self._chance

    def executor_fails(self) -> bool:
        return self._scheduler.now_s < self._calm_at_s and self._random.random() < self._executor_chance


class SimulatedWork:
    """One loader's `Work`."""

    def __init__(self, host: Host, tables: Tables, poison: Poison, routing: str) -> None:
        self.digest = routing
        self._tables = tables
        self._poison = poison
        self._fetch = FetchHandle(host.store, attempts=2, clock=host.clock)

    @contextmanager
    def prepare(
        self, descriptors: Sequence[BatchDescriptor], quarantined: Mapping[int, str]
    ) -> Iterator[Mapping[str, list[Row]]]:
        rows: dict[str, list[Row]] = {name: [] for name in self._tables.names}
        for descriptor in descriptors:
            if descriptor.sequence in quarantined:
                assert self._tables.dead_letters is not None, "only a loader with dead letters sets batches aside"
                rows[self._tables.dead_letters].append(Row(descriptor.sequence, -1, b""))
                continue
            for index, value in enumerate(self._read(descriptor)):
                rows[self._route(Record.from_bytes(value))].append(Row(descriptor.sequence, index, value))
        yield rows

    def probe(self, descriptors: Sequence[BatchDescriptor]) -> Sequence[Failure]:
        failures = []
        for descriptor in descriptors:
            try:
                self._read(descriptor)
            except CorruptBatch as error:
                failures.append(Failure(descriptor.sequence, descriptor.location, str(error), "data"))
            except ObjectNotFound as error:
                failures.append(Failure(descriptor.sequence, descriptor.location, str(error), "missing"))
            except (StorageError, JobFailed) as error:
                failures.append(Failure(descriptor.sequence, descriptor.location, str(error), "infra"))
        return failures

    def _read(self, descriptor: BatchDescriptor) -> list[bytes]:
        if self._poison.executor_fails():
            raise JobFailed(f"the executor that read {descriptor.location!r} was lost")
        entries = self._fetch.fetch(descriptor).entries
        if any(Record.from_bytes(entry).kind == POISON for entry in entries) and self._poison.strikes():
            raise CorruptBatch(f"{descriptor.location!r} cannot be read", location=descriptor.location)
        return entries

    def _route(self, record: Record) -> str:
        names, dead_letters = self._tables.names, self._tables.dead_letters
        if record.kind == "x" and dead_letters is not None:
            return dead_letters
        has_second = len(names) > (2 if dead_letters is not None else 1)
        if record.kind == "b" and has_second and self.digest == ROUTINGS[0]:
            return names[1]
        return names[0]
