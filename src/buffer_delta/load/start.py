"""A loader's start: bind, look, check, claim, enter.

Refusals that concern state come before anything is claimed; those that another loader may bring about until we have
entered are checked once more after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, QueueBound
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Ledger
from buffer.store.base import Store
from buffer_delta.delta.state import NOTHING, TableState
from buffer_delta.errors import TableReplaced
from buffer_delta.load import checks
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Rules, Work
from buffer_delta.load.tables import LoaderTables

STARTS_MAX = 20  # each restart of the start means that another loader made progress meanwhile


@dataclass(frozen=True, slots=True)
class Entered:
    """A queue that is claimed, and what was found when we entered."""

    consumer: Consumer
    ledger: Ledger
    tables: Mapping[str, TableState]
    committed: int
    """Through which sequence everything is loaded."""


class Start:
    """`enter`, then, holding what it returned, `check`."""

    def __init__(
        self,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
        journal: Plans,
        tables: LoaderTables,
        work: Work,
        rules: Rules,
        reached: Callable[[str], None],
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._journal = journal
        self._tables = tables
        self._members = tables.members
        self._work = work
        self._rules = rules
        self._reached = reached

    def enter(self) -> Entered:
        """Claim the queue and enter the ledger. After an error nothing is held."""
        for _ in range(STARTS_MAX):
            committed, binding = self._look_before_claiming()
            consumer = Consumer.new(self._config, committed if committed > NOTHING else None, clock=self._clock)
            try:
                self._reached("claimed")
                ledger = self._journal.enter(consumer.epoch, binding, taken_over=consumer.leases is not None)
                self._reached("entered")
                tables = self._tables.look_at_all(ledger)
                found = self._members.frontier(ledger, tables)
            except BaseException:
                consumer.abandon()
                raise
            if found == committed:
                return Entered(consumer, ledger, tables, found)
            consumer.abandon()  # an older loader committed between our look and our claim: look again
        raise Fenced(f"{STARTS_MAX} starts in a row found another loader at work; stop one of them")

    def check(self, entered: Entered) -> None:
        """Again: a loader may have blocked after our look, and an operator may rewrite a blocked plan."""
        ledger, committed, skips = entered.ledger, entered.committed, self._rules.accept_gaps
        checks.not_blocked(ledger)
        checks.pending_plan(ledger, committed, self._members.main, accept_gaps=skips)
        checks.same_configuration(ledger, committed, entered.tables, self._work.known_digests, accept_gaps=skips)
        checks.nothing_to_nowhere(ledger, committed, has_dead_letters=self._rules.has_dead_letters)

    # Before anything is claimed

    def _look_before_claiming(self) -> tuple[int, Binding]:
        binding = self._tables.binding(self._rules.app_id)
        if self._rules.adopt:
            ledger = self._adopted(binding)
        else:
            ledger, binding = self._bound(binding)
        assert ledger.app_id is not None, "a bound ledger names its app"
        self._reached("bound")
        # The tables first, the ledger after: plans are written ahead, so the ledger is never behind them.
        tables = self._tables.look_at_all(ledger)
        ledger = self._journal.read() or ledger
        if not tables.keys() >= set(self._members.others(ledger)):  # planned by an older release since we looked
            tables = self._tables.look_at_all(ledger)
        committed = self._members.frontier(ledger, tables)
        checks.not_blocked(ledger)
        checks.ledger_knows(ledger, max(checks.positions(tables)))
        checks.not_inside(ledger.plan, tables)
        skips = self._rules.accept_gaps
        checks.same_configuration(ledger, committed, tables, self._work.known_digests, accept_gaps=skips)
        checks.nothing_to_nowhere(ledger, committed, has_dead_letters=self._rules.has_dead_letters)
        checks.same_queue(ledger, self._store, self._config.manifest_path)
        if not skips:
            self._check_same_tables(ledger, tables)
        return committed, replace(binding, app_id=ledger.app_id)

    def _adopted(self, binding: Binding) -> Ledger:
        app_id, accept_gaps = self._rules.app_id, self._rules.accept_gaps
        assert app_id, "LoaderConfig wants an app_id with adopt"
        # The queue first, the tables after: an ack comes after the commit, so a loader beside us makes no gap.
        first = 0 if accept_gaps else checks.queue_start(self._store, self._config.manifest_path)
        tables = {name: target.look(app_id) for name, target in self._tables.targets.items()}
        main, position = self._members.main, tables[self._members.main].position
        # Before it is bound to a table that it cannot go on with.
        checks.meets_queue(main, position, first, self._journal.finished())
        return self._journal.adopt(
            binding,
            position,
            ahead=self._members.ahead(tables),
            digest=self._work.digest,
            may_complete=accept_gaps or not self._rules.has_dead_letters,
        )

    def _bound(self, binding: Binding) -> tuple[Ledger, Binding]:
        """… and the binding that fits it. A main table that is elsewhere now tells by what it has loaded that it is
        the one, where its id is not known yet: the first plan stands before there is a table."""
        try:
            return self._journal.bind(binding), binding
        except QueueBound:
            ledger = self._journal.read()
            if ledger is None or ledger.app_id is None:
                raise
            position = self._tables.targets[self._members.main].look(ledger.app_id).position
            binding = replace(binding, main_position=position)
            return self._journal.bind(binding), binding

    def _check_same_tables(self, ledger: Ledger, tables: Mapping[str, TableState]) -> None:
        """The plan may be of a loader that created a table after our look: then look again, now after the plan."""
        try:
            checks.same_tables(ledger.plan, self._members.by_keys(tables))
        except TableReplaced:
            checks.same_tables(ledger.plan, self._members.by_keys(self._tables.look_at_all(ledger)))
