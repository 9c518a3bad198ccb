"""Deliberate breaks of the protocol, each a small patch over the production code. The simulator must find them all.

A mutant takes one rule away and says what the simulator should see then. Patching production code from outside is
the point here: it has no switches for this. The breaks themselves are in `queue_mutants`, `client_mutants` and
`loader_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

TWICE = r"in the queue already|it is in .* already|it is \d+ already|rows of it are in a table and the whole batch"
"""A row, a record or a batch is there twice."""
LOST = r"in no table|no such object|is in the queue as|nobody has processed it"
STUCK = r"stuck"
FALSE_ALARM = r"ended with[\s\S]*(SequenceGap|LedgerLost|ManifestLost|QueueBehindConsumer)"
"""Nothing is lost, but an operator is called, and without one nothing goes on."""
FALSE_WORD = r"said to be durable|was told that it would not|but its producer got"
"""A producer was told something that is not so."""
GIVEN_UP = r"gave up batch|gave up entry|but it can be read"
"""A batch that can be read is treated as one that cannot."""
NOT_THE_OWNER = r"belongs to"


@dataclass(frozen=True)
class Mutant:
    worlds: frozenset[str]
    """Where it matters; elsewhere nothing would change. None: its simulation has only one kind."""
    sees: str
    apply: Callable[[], AbstractContextManager[None]]
    within: int = 2000
    """How many seeds may pass before it is seen: more where it takes a rare meeting of several actors."""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    *worlds: str, sees: str, within: int = 2000
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def register(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        MUTANTS[make.__name__] = Mutant(frozenset(worlds), sees, contextmanager(make), within)
        return make

    return register
