"""A batch under a number: repeated by anybody, it is in the queue once, also where nobody answered."""

from __future__ import annotations

import pytest

from buffer.config import ProducerConfig
from buffer.errors import ContentionError
from buffer.inspect.status import read_manifest
from buffer.model import Metadata
from buffer.produce.marked import MarkedQueue
from buffer.store import Store
from buffer.store.base import Outcome, Version
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import Fault, FaultyStore

PATH = "ingest/manifest"
CALL = Metadata(0, 1_700_000_000_000)


class FallsSilent(FaultyStore):
    """From the next write of the manifest on, nothing of it is answered any more."""

    is_next = False

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        outcome = super().put_if_match(location, data, version)
        if self.is_next and location == PATH:
            self.add(*(Fault.before(op, times=10_000) for op in ("get", "get_if_changed", "put_if_match")))
        return outcome


def queue_over(store: Store, clock: ManualClock) -> MarkedQueue:
    return MarkedQueue("parker", store, ProducerConfig(store=store, append_timeout_s=1.0), clock)


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("again", ["same process", "another one"])
def test_should_ask_for_a_repeat_that_lands_once_when_nobody_answers(memory: Store, landed: bool, again: str) -> None:
    """The write's reply is lost, and then no read answers: to a producer without numbers the outcome is unknown."""
    clock = ManualClock()
    queue_over(memory, clock).append(b"first", [CALL], 0, "ingest")
    faulty = FallsSilent(memory)
    queue = queue_over(faulty, clock)
    queue.append(b"second", [CALL], 1, "ingest")
    faulty.add((Fault.after if landed else Fault.before)("put_if_match", location=PATH))
    faulty.is_next = True
    with pytest.raises(ContentionError, match=r"number 2 of 'parker'.*call again"):
        queue.append(b"third", [CALL], 2, "ingest")
    faulty.heal()
    repeated = queue if again == "same process" else queue_over(memory, clock)
    assert repeated.append(b"third", [CALL], 2, "ingest") == (not landed)
    assert [memory.get(entry.location).data for entry in read_manifest(memory, PATH)] == [b"first", b"second", b"third"]
