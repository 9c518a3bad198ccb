"""What a loader refuses, and the way out it names. Each check raises or returns; none of them writes anything.

Tables come as `TableState`s, by name: what one look found. `start.py` runs the checks, before anything is claimed,
except `pending_plan`, which needs the ledger as it is after entering. `protocol.py` runs `not_beyond` and
`held_by_the_same`, which guard each range's ack; `commits.py` runs `may_commit`, which guards each commit, `same_rules`
before the first of them, and `not_hidden` and `not_elsewhere` right after each; it raises `behind`, too. The loader
runs `different_tables`, `lasting_tables` and `free_places`, which need to know where tables really are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from buffer.errors import Fenced, InvalidConfig, ManifestLost, ObjectNotFound
from buffer.ledger.entries import listed
from buffer.ledger.from_workers import all_finished
from buffer.ledger.plan import Ledger, Plan, is_for_main_alone
from buffer.ledger.ranges import Runs
from buffer.manifest import Manifest
from buffer.store.base import CanGet
from buffer_delta.delta.state import NOTHING, Commit, Rewrite, TableState
from buffer_delta.errors import (
    Blocked,
    LedgerBehind,
    RouteChanged,
    SequenceGap,
    TableReplaced,
    TableRewritten,
)

Tables = Mapping[str, TableState]


def positions(tables: Tables) -> list[int]:
    return [state.position for state in tables.values()]


def not_blocked(ledger: Ledger) -> None:
    if ledger.blocked is None:
        return
    found = ledger.blocked
    raise Blocked(
        f"batches {found.first}..{found.last} are blocked: {found.reason} (`buffer ledger dump` names them). Fix what "
        "is wrong and run `buffer-delta unblock`, or give those up with `buffer-delta unblock --skip`",
        first=found.first,
        last=found.last,
        attempts=ledger.plan.attempts if ledger.plan else 0,
        batches=tuple(sorted(found.batches)),
        entries=tuple((sequence, index) for sequence, index, _ in listed(found.entries)),
    )


def ledger_knows(ledger: Ledger, committed: int) -> None:
    """Plans are written ahead, so no table can be ahead of its own queue's ledger."""
    planned = ledger.plan.last if ledger.plan else NOTHING
    if committed > planned:
        raise behind(ledger.app_id, committed, planned)


def behind(app_id: str | None, committed: int, planned: int) -> LedgerBehind:
    """The error for tables that hold what was never planned."""
    return LedgerBehind(
        f"the tables have committed sequence {committed} for app {app_id!r}, but the ledger of this queue "
        f"has planned only through {planned}: the app_id belongs to another queue, or the ledger was put back "
        "from a backup. Choose another app_id; or, if this is the right queue and no other loader runs, pass "
        "adopt=True (--adopt) with this app_id",
        committed=committed,
        planned_last=planned,
    )


def not_inside(plan: Plan | None, tables: Tables) -> None:
    """A planned range is committed as a whole, so no table can stand in the middle of it."""
    for name, state in tables.items():
        if plan is not None and plan.first <= state.position < plan.last:
            raise inside(name, state.position, plan)


def not_beyond(plan: Plan, tables: Tables, epoch: int) -> None:
    """No table can be past a range that nobody else holds: acking it would drop what was never loaded."""
    for name, state in tables.items():
        if state.position > plan.last:
            raise Fenced(
                f"{name!r} is at sequence {state.position}, beyond the range {plan.first}..{plan.last} in hand: "
                "another loader took over, or another queue is loaded under the same app_id",
                epoch=epoch,
            )


def same_queue(ledger: Ledger, store: CanGet, manifest_path: str) -> None:
    """A manifest restored from a backup hands out sequences that were loaded before, for other batches."""
    if not ledger.was_claimed:
        return
    try:
        manifest = Manifest.from_bytes(store.get(manifest_path).data, location=manifest_path)
    except ObjectNotFound as error:
        raise ManifestLost(
            f"the manifest {manifest_path!r} is gone, but its ledger knows {ledger.next_sequence} sequences; "
            "restore it, or start a new queue with a manifest_path in another folder",
            location=manifest_path,
            seen_next_sequence=ledger.next_sequence,
        ) from error
    found = manifest.read(ledger.plan.last) if ledger.plan and ledger.last_location is not None else None
    went_on = manifest.next_sequence >= ledger.next_sequence and manifest.epoch >= ledger.epoch
    if went_on and (found is None or found.location == ledger.last_location):
        return
    raise ManifestLost(
        f"the manifest {manifest_path!r} is not the one that the ledger of this queue knows: it was at sequence "
        f"{ledger.next_sequence} and epoch {ledger.epoch} and held {ledger.last_location!r}, now it is at "
        f"{manifest.next_sequence} and {manifest.epoch} with {found.location if found else None!r}. It was restored "
        "from a backup or replaced; put the newest one back, or start a new queue with a manifest_path in another "
        "folder",
        location=manifest_path,
        next_sequence=manifest.next_sequence,
        seen_next_sequence=ledger.next_sequence,
    )


def queue_start(store: CanGet, manifest_path: str) -> int:
    """The first sequence that the queue holds, or will; 0 where there is no queue yet."""
    try:
        return Manifest.from_bytes(store.get(manifest_path).data, location=manifest_path).first_sequence
    except ObjectNotFound:
        return 0


def meets_queue(main: str, committed: int, first: int, finished: Runs) -> None:
    """The queue, which begins at `first`, still holds what comes next in the main table, but for `finished` ones."""
    if first > committed + 1 and not all_finished(finished, committed + 1, first - 1):
        raise gap(main, committed, first, first - 1)


def may_commit(
    plan: Plan, keys: tuple[str, ...], state: TableState, epoch: int, *, is_main: bool, accept_gaps: bool
) -> None:
    """The table as it was looked at right before the commit: our commit on top would hide what was done to it.

    `keys` is what plans call the table, and its name. The main table is where the plan found it. Another one may be
    anywhere behind: it got nothing from the ranges since, or has joined.
    """
    name = keys[-1]
    if state.position == plan.last:  # it holds the range already
        return
    not_beyond(plan, {name: state}, epoch)
    if not accept_gaps:
        same_tables(plan, {keys: state})
    not_inside(plan, {name: state})
    if is_main and state.position != plan.after and not accept_gaps:  # below it: the table was put back
        raise gap(name, state.position, plan.first, plan.after)


def not_hidden(name: str, commit: Commit) -> None:
    """Rows were taken back while our commit was written: this is the last moment to say it."""
    if commit.hidden is not None:
        raise rewritten(name, commit.hidden, hidden_by=commit.version)


def not_elsewhere(plan: Plan, name: str, seen: TableState, commit: Commit) -> None:
    """The commit must be in the very table that its files were written for: one that was dropped meanwhile, and made
    again in its place, may have got it. Also where gaps are accepted: nobody has accepted this one.

    A table that was replaced by a command of Delta's has another id, too; its history tells, and the next look.
    """
    after = commit.after
    if after.table_id == seen.table_id or after.position != plan.last or after.rewrite is not None:
        return
    raise TableReplaced(
        f"the table {name!r} was dropped and made again while {plan.first}..{plan.last} was loaded (id "
        f"{seen.table_id}, now {after.table_id}), and the commit of that range went into the new one: what was loaded "
        "before is not in it, and it names files that may have gone with the old one. The queue still holds the range. "
        "Bring the old table back; or drop the new one, too, and pass on_gap='skip' (--on-gap skip) to go on with what "
        "the queue still holds",
        table=name,
        expected_id=seen.table_id,
        found_id=after.table_id,
    )


def same_tables(plan: Plan | None, tables: Mapping[tuple[str, ...], TableState]) -> None:
    """Delta keeps a txn while RESTORE and REPLACE take the rows, and forgets it with a dropped table.

    `tables` by what plans may call them; the last one is the name.
    """
    for keys, state in tables.items():
        name = keys[-1]
        # First: a replaced table has another id too, and its history says more.
        if state.rewrite is not None:
            raise rewritten(name, state.rewrite)
        if plan is not None:
            _same_id(plan, keys, state)


def held_by_the_same(plan: Plan, tables: Mapping[tuple[str, ...], TableState]) -> None:
    """A table that holds the range must be the one that it was planned for: the reply to a commit may have been lost,
    and the table dropped and made again around it. As `same_tables` has them."""
    for keys, state in tables.items():
        if state.position == plan.last and state.rewrite is None:
            _same_id(plan, keys, state)


def _same_id(plan: Plan, keys: tuple[str, ...], state: TableState) -> None:
    known = [plan.table_ids[key] for key in keys if key in plan.table_ids]
    expected, found = known[0] if known else None, state.table_id
    if expected is not None and found != expected:
        raise TableReplaced(
            f"the table {keys[-1]!r} was {'dropped' if found is None else 'dropped and made again'} since "
            f"the last commit (id {expected}, now {found}), or this name leads to another place now: what was "
            "loaded before is not in it. Bring the old table back, or pass on_gap='skip' (--on-gap skip) to go on with "
            "what the queue still holds",
            table=keys[-1],
            expected_id=expected,
            found_id=found,
        )


def rewritten(table: str, rewrite: Rewrite, *, hidden_by: int | None = None) -> TableRewritten:
    """The error for rows that were taken back; `hidden_by` is the version of ours that came after, if one did."""
    then = "then pass on_gap='skip' (--on-gap skip) once, until the next range is loaded"
    if hidden_by is not None:
        then = f"our commit of version {hidden_by} came after it, so the next start goes on and does not say this again"
    return TableRewritten(
        f"{rewrite.operation} at version {rewrite.version} ({rewrite.timestamp}) took rows back from {table!r} that "
        f"count as loaded. Replay them from the version before, for example INSERT INTO … SELECT * FROM … VERSION AS "
        f"OF {rewrite.version - 1} WHERE _sequence > …; {then}",
        table=table,
        operation=rewrite.operation,
        version=rewrite.version,
    )


def different_tables(places: Mapping[str, str]) -> None:
    """`places` says where each table really is. Two names for one table: the second would count as loaded already."""
    names: dict[str, str] = {}
    for name, place in places.items():
        other = names.setdefault(place, name)
        if other != name:
            raise InvalidConfig(
                f"{other!r} and {name!r} are the same table, {place}: table, routes and dead_letters must differ",
                key="routes",
                value=name,
            )


def free_places(occupants: Mapping[str, str | None]) -> None:
    """`occupants` says what else lies in the folders of tables that are not there. Such a table cannot be created, and
    a queue that was bound to it would have no other."""
    for name, found in occupants.items():
        if found is not None:
            raise InvalidConfig(
                f"the table {name!r} is not there, and cannot be created: its folder holds {found!r} and is no Delta "
                "table. Name a folder that is empty or not there yet",
                key="table",
                value=name,
            )


def lasting_tables(ending: Sequence[str]) -> None:
    """`ending` are the tables that no other session would find: what is loaded into them counts as loaded, and is not
    there at the next start."""
    for name in ending:
        raise InvalidConfig(
            f"the table {name!r} is one of Spark's in-memory catalog, which ends with this session: the next start "
            "would not find it, and what was loaded into it would be missing. Give its path (--table ./events), or use "
            "a catalog that lasts: spark.sql.catalogImplementation=hive, or one of your own as spark.sql.catalog.…",
            key="table",
            value=name,
        )


def pending_plan(ledger: Ledger, committed: int, main: str, *, accept_gaps: bool) -> None:
    """The plan that was found and must be replayed has to fit what the tables hold."""
    plan = ledger.plan
    if plan is not None and plan.last > committed and plan.after != committed and not accept_gaps:
        raise gap(main, committed, plan.first, plan.after)


def same_configuration(
    ledger: Ledger, committed: int, tables: Tables, digests: Collection[str], *, accept_gaps: bool
) -> None:
    """A range that is in some tables, or may be at any moment, is completed as it was begun. See `members`.

    A main table that is not where the range begins was dropped or put back: `same_tables` and `pending_plan` say that.
    """
    plan = ledger.plan
    if plan is not None and plan.after != committed and not accept_gaps:
        return
    if plan is None or plan.last <= committed or plan.digest in digests or is_for_main_alone(ledger):
        return
    # Once the split is written, whoever wrote it may commit a table at any moment.
    if plan.quarantined is None and max(positions(tables)) < plan.first:
        return
    raise RouteChanged(
        f"the range {plan.first}..{plan.last} was begun under other tables, routing, format or schema, and may be in "
        "some tables already; finish it with the old configuration, then change it. If that one cannot finish it, "
        "stop every loader and run `buffer-delta unblock --replan`",
        first=plan.first,
        last=plan.last,
        planned_digest=plan.digest,
        digest=next(iter(digests), ""),
    )


def nothing_to_nowhere(ledger: Ledger, committed: int, *, has_dead_letters: bool) -> None:
    """What an operator gave up goes to the dead letters, and not nowhere because those joined too late for it."""
    plan = ledger.plan
    if plan is None or plan.last <= committed or not has_dead_letters or not is_for_main_alone(ledger):
        return
    if not plan.quarantined and not plan.entries:
        return
    raise RouteChanged(
        f"the range {plan.first}..{plan.last} was begun for the main table alone, and a part of it was given up: the "
        "dead letters joined later and would not get that. To have it there, stop every loader, run `buffer-delta "
        "unblock --replan` and start one. To leave it out, start once without dead_letters",
        first=plan.first,
        last=plan.last,
        planned_digest=plan.digest,
    )


def same_rules(plan: Plan, rules: str) -> None:
    """The tables' own rules decided with the plan where its records go, and one of them may hold its part."""
    if plan.rules != rules:
        raise RouteChanged(
            f"the range {plan.first}..{plan.last} was begun when the tables had other constraints or NOT NULL columns, "
            "and may be in some of them already; put them back until it is loaded. If that cannot be, stop every "
            "loader and run `buffer-delta unblock --replan`",
            first=plan.first,
            last=plan.last,
            planned_digest=plan.rules,
            digest=rules,
        )


def inside(table: str, position: int, plan: Plan) -> LedgerBehind:
    """The error for a table that was brought to the middle of a range which nobody has committed in part."""
    return LedgerBehind(
        f"{table!r} has committed sequence {position} under this app_id, in the middle of the range {plan.first}.."
        f"{plan.last} that is planned: the ledger was put back from a backup, or something else writes under this "
        "app_id. If no other loader runs, pass adopt=True (--adopt) with this app_id",
        committed=position,
        planned_last=plan.last,
    )


def gap(table: str, committed: int, earliest: int, known: int) -> SequenceGap:
    """The error for a main table and a queue that do not meet. `known` is how far the ledger says that it was."""
    if committed >= known:  # the table is where it was: so it is the queue that goes on elsewhere
        held = "nothing yet" if committed == NOTHING else f"through sequence {committed}"
        what = (
            f"the table {table!r} has loaded {held}, the queue goes on at {earliest}: {earliest - committed - 1} "
            "batches between them are gone from the queue. Pass on_gap='skip' (--on-gap skip) to accept the loss"
        )
    elif committed == NOTHING:
        what = (
            f"the table {table!r} has loaded nothing from this queue, which was loaded through sequence {known} "
            "before: it is a new table, or another one than then. Name the table that was loaded, or bring it back. To "
            f"go on with this one, which then lacks everything before sequence {earliest}, pass on_gap='skip' "
            "(--on-gap skip)"
        )
    else:
        what = (
            f"the table {table!r} has loaded through sequence {committed}, and was at {known} before: it was put back "
            f"to an older state, from a backup say. The queue goes on at {earliest}. Bring the newer state back, or "
            "pass on_gap='skip' (--on-gap skip) to go on without what is missing"
        )
    return SequenceGap(what, committed=committed, earliest=earliest)
