"""What a worker does with very many batches in hand: one step for all of them, where each step walks over them all."""

from __future__ import annotations

from typing import Any

import pytest

from buffer.ledger import lease_rules
from buffer.testing import Fault, FaultyStore
from tests.leases.lease_support import TIMEOUT_MS, Work


def test_should_give_back_in_one_step_what_there_was_no_time_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(10)
    slow = FaultyStore(work.store, [], clock=work.clock)
    queue = work.open(store=slow)
    slow.add(Fault.delay("get", TIMEOUT_MS / 2000 + 1, times=1, location=work.descriptors()[0].location))
    steps: list[Any] = []
    snooze = lease_rules.snooze

    def counted(*args: Any) -> Any:
        steps.append(args)
        return snooze(*args)

    monkeypatch.setattr(lease_rules, "snooze", counted)
    assert queue.consume(10).snoozed == tuple(range(1, 10))
    assert len(steps) == 1
    assert [batch.extra for batch in work.section().batches.values()] == [0] + [1] * 9
