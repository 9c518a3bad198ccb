"""Trying parts of a range for real: prepared as ever, and written where nobody sees them. The lab of `isolate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from buffer.errors import Fenced, StateLost
from buffer.model import BatchDescriptor
from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.load.ports import Failure, Group, Target, Trouble, Work
from buffer_delta.load.tables import Seen

T = TypeVar("T")


class Trials:
    """`isolate.Lab` on the loader's own work and tables. Nothing is committed, no table is created."""

    def __init__(self, work: Work, targets: Mapping[str, Target], txn: Txn, look: Callable[[str], TableState]) -> None:
        self._work = work
        self._targets = targets
        self._txn = txn
        self._look = look

    def probe(self, part: Group) -> Sequence[Failure] | Trouble:
        return self._tried(lambda: self._work.probe(part, Seen(self._look).__getitem__))

    def count(self, descriptor: BatchDescriptor) -> int | Trouble:
        return self._tried(lambda: self._work.count(descriptor))

    def attempt(self, part: Group) -> Trouble | None:
        def write() -> None:
            seen = Seen(self._look)
            with self._work.prepare(part, seen.__getitem__) as rows:
                for name in rows:
                    self._targets[name].rehearse(rows[name], self._txn, seen[name])

        return self._tried(write)

    def _tried(self, act: Callable[[], T]) -> T | Trouble:
        try:
            return act()
        except (Fenced, StateLost):
            raise
        except Exception as error:  # noqa: BLE001  (that is the question: what it raises)
            return self._work.trouble(error)
