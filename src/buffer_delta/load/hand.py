"""What a loader holds once it has entered: the queue, how far everything is loaded, and the plan in hand.

Each write of a plan goes through here, so what is held is what the ledger says, also where the caller fails right
after the write: the next attempt goes on from that.
"""

from __future__ import annotations

from collections.abc import Callable

from buffer.consume.consumer import Consumer
from buffer.ledger.plan import Blocked, Ledger, Plan, is_for_main_alone
from buffer_delta.delta.state import NOTHING
from buffer_delta.load.plans import Plans


class Hand:
    """Empty before `take`, which comes with the claim. `reached` is told of every plan that was written."""

    def __init__(self, journal: Plans, reached: Callable[[str], None]) -> None:
        self._journal = journal
        self._reached = reached
        self.consumer: Consumer | None = None
        self.committed = NOTHING
        """Through which sequence everything is loaded."""
        self.plan: Plan | None = None
        """The range in hand, or planned last."""
        self.is_for_main_alone = False
        """The plan that was found when we entered."""
        self.is_untried = False
        """The range in hand was planned by us, and no commit of it was tried."""
        self.must_withdraw = False
        """It is to be taken back before anything else is done: the store did not answer when that was tried."""
        self._earlier: Plan | None = None
        """The plan before that one."""

    def take(self, consumer: Consumer, ledger: Ledger, committed: int) -> None:
        self.consumer, self.committed, self.plan = consumer, committed, ledger.plan
        self.is_for_main_alone = is_for_main_alone(ledger)
        self.is_untried = self.must_withdraw = False  # who planned it may have tried it

    def give_back(self) -> None:
        if self.consumer is not None:
            self.consumer.abandon()
            self.consumer = None

    @property
    def queue(self) -> Consumer:
        assert self.consumer is not None, "open() comes first"
        return self.consumer

    @property
    def epoch(self) -> int:
        return self.queue.epoch

    # Writing ahead

    def plan_next(self, plan: Plan, *, last_location: str, main_alone: bool) -> Plan:
        """Write a new plan over the one that is finished. Raises Fenced."""
        self.is_for_main_alone = main_alone
        next_sequence = self.queue.known().next_sequence
        earlier = self.plan
        self.plan = self._journal.plan(
            self.epoch, earlier, plan, next_sequence=next_sequence, last_location=last_location
        )
        self.is_untried, self._earlier = True, earlier
        self._reached("planned")
        return self.plan

    def withdraw(self) -> None:
        """Put the plan before it in place of an untried one. Raises Fenced.

        After another error nobody knows what is in the ledger: call it again, before anything else.
        """
        assert self.is_untried, "one that was tried may be in a table at any moment"
        assert self.plan is not None, "an untried one is there"
        self.must_withdraw = True
        self._journal.withdraw(self.epoch, self.plan, self._earlier)
        self.plan, self.is_untried, self.must_withdraw = self._earlier, False, False

    def revise(self, earlier: Plan, plan: Plan, step: str) -> Plan:
        """Count an attempt, decide the split or name the tables, of the plan that is there. Raises Fenced."""
        self.plan = self._journal.revise(self.epoch, earlier, plan)
        self._reached(step)
        return self.plan

    def block(self, state: Blocked) -> None:
        self._journal.block(self.epoch, state)

    def check(self) -> None:
        """Raises Fenced, LedgerLost if the ledger is not ours any more."""
        self._journal.check(self.epoch)
