"""Random lives of a queue beside a plain list (see `queue_life.py`), on every kind of store."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from buffer.store import Store
from tests.queue.queue_life import ACTORS, INTERFERENCES, TROUBLES, Life, Troubles
from tests.queue.queue_support import memory
from tests.servers import StoreAddress

actors = st.integers(0, ACTORS - 1)
trouble = st.tuples(st.sampled_from(TROUBLES), st.booleans())
troubles = st.lists(trouble, max_size=2) | st.lists(trouble, min_size=5, max_size=7)
interferences = st.lists(st.sampled_from(INTERFERENCES), max_size=5)


class QueueMachine(RuleBasedStateMachine):
    """Hypothesis decides what happens, and finds the shortest life that breaks a promise."""

    new_store: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(self.new_store(), Counter())

    @rule(actor=actors, size=st.integers(1, 3), grows=st.booleans(), script=troubles, others=interferences)
    def append(self, actor: int, size: int, grows: bool, script: Troubles, others: list[str]) -> None:
        self.life.append(actor, size, grows, script, others)

    @rule(actor=actors, script=troubles, others=interferences)
    def claim(self, actor: int, script: Troubles, others: list[str]) -> None:
        self.life.claim(actor, script, others)

    @rule(actor=actors, share=st.floats(0, 1), claims=st.booleans(), script=troubles, others=interferences)
    def dequeue(self, actor: int, share: float, claims: bool, script: Troubles, others: list[str]) -> None:
        self.life.dequeue(actor, share, claims, script, others)

    @rule(actor=actors, read_fails=st.booleans())
    def read(self, actor: int, read_fails: bool) -> None:
        self.life.read(actor, read_fails)

    @rule(slot=st.integers(0, 2 * ACTORS - 1))
    def reopen(self, slot: int) -> None:
        self.life.reopen(slot)

    @rule()
    def land(self) -> None:
        self.life.land()

    @invariant()
    def keep_every_promise(self) -> None:
        self.life.keep_every_promise()

    def teardown(self) -> None:
        self.life.land()  # late writes cannot break a queue that has moved on


@pytest.mark.parametrize(("kind", "examples", "steps"), [("memory", 100, 25), ("local", 20, 20), ("s3", 10, 15)])
def test_should_behave_like_a_list(
    kind: str, examples: int, steps: int, store_factory: Callable[[str], StoreAddress]
) -> None:
    class Machine(QueueMachine):
        new_store = staticmethod(lambda: store_factory(kind).open())

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),  # a server's speed says nothing about the test
        ),
    )


def walk(life: Life, chance: random.Random) -> None:
    """One step of a random walk."""
    actor = chance.randrange(ACTORS)
    length = chance.randint(5, 7) if chance.random() < 0.4 else chance.randint(0, 2)
    script = [(chance.choice(TROUBLES), chance.random() < 0.5) for _ in range(length)]
    others = chance.choices(INTERFERENCES, k=chance.choice((0, 0, chance.randint(1, 16))))
    match chance.choice(("append", "append", "dequeue", "dequeue", "claim", "read", "reopen", "land")):
        case "append":
            life.append(actor, chance.randint(1, 3), chance.random() < 0.5, script, others)
        case "dequeue":
            life.dequeue(actor, chance.random(), chance.random() < 0.5, script, others)
        case "claim":
            life.claim(actor, script, others)
        case "read":
            life.read(actor, chance.random() < 0.2)
        case "reopen":
            life.reopen(chance.randrange(2 * ACTORS))
        case "land":
            life.land()
    life.keep_every_promise()


@pytest.mark.parametrize("seed", range(3))
def test_should_behave_like_a_list_on_a_long_walk(seed: int) -> None:
    """The same in every run, and so long that everything that can happen does."""
    chance = random.Random(seed)
    life = Life(memory(), Counter())
    for _ in range(3000):
        walk(life, chance)
    expected = {"appended", "appended after a dead attempt", "contention", "unknown, maybe", "unknown, landed"}
    expected |= {"claimed", "claim gave up", "dequeued", "dequeue gave up", "fenced"}
    assert expected <= set(life.seen), life.seen
