"""What is refused before and right after a commit, decided from what one look at a table found."""

from __future__ import annotations

import pytest

from buffer.errors import BufferQueueError, Fenced
from buffer.ledger.plan import Ledger, Plan
from buffer_delta.delta.state import NO_TABLE, Commit, Rewrite, TableState
from buffer_delta.errors import LedgerBehind, RouteChanged, SequenceGap, TableReplaced, TableRewritten
from buffer_delta.load import checks

KEYS = ("file:/t", "t")
PLAN = Plan(after=9, first=10, last=20, table_ids={"file:/t": "id"})
OVERWRITE = Rewrite("overwrite", 7, "2023-11-14T22:13:20Z")


def seen(position: int, *, table_id: str = "id", rewrite: Rewrite | None = None) -> TableState:
    return TableState(version=8, table_id=table_id, position=position, rewrite=rewrite)


def test_should_let_other_tables_be_anywhere_behind() -> None:
    """They got nothing, or have joined."""
    for position in (-1, 5, 9, 20):
        checks.may_commit(PLAN, KEYS, seen(position), 1, is_main=False, accept_gaps=False)
    for state, error in ((seen(21), Fenced), (seen(15), LedgerBehind), (seen(5, table_id="other"), TableReplaced)):
        with pytest.raises(error):
            checks.may_commit(PLAN, KEYS, state, 1, is_main=False, accept_gaps=False)


def test_should_not_blame_the_configuration_where_the_table_was_dropped_or_put_back() -> None:
    """The range is loaded and acked, the settings have changed since, and the main table is not where it was."""
    plan = Plan(after=9, first=10, last=20, digest="old", quarantined={}, tables=("t", "dead"), table_ids={"t": "id"})
    ledger = Ledger("Q", app_id="app", tables=("t", "dead"), born=True, plan=plan)
    for position in (-1, 5):
        tables = {"t": seen(position)}
        checks.same_configuration(ledger, position, tables, ["new"], accept_gaps=False)
        with pytest.raises(SequenceGap):
            checks.pending_plan(ledger, position, "t", accept_gaps=False)
        with pytest.raises(RouteChanged):  # the range would be loaded again, split in another way
            checks.same_configuration(ledger, position, tables, ["new"], accept_gaps=True)
    with pytest.raises(RouteChanged):
        checks.same_configuration(ledger, 9, {"t": seen(9)}, ["new"], accept_gaps=False)


def test_should_know_the_ids_that_an_older_release_kept_by_name() -> None:
    older = Plan(after=9, first=10, last=20, table_ids={"t": "id"})
    checks.may_commit(older, KEYS, seen(9), 1, is_main=True, accept_gaps=False)
    with pytest.raises(TableReplaced):
        checks.may_commit(older, KEYS, seen(9, table_id="another"), 1, is_main=True, accept_gaps=False)


@pytest.mark.parametrize(
    ("committed", "known", "match"),
    [
        (20, 20, r"through sequence 20, the queue goes on at 31: 10 batches between them are gone from the queue"),
        (-1, -1, r"has loaded nothing yet, the queue goes on at 31: 31 batches between them are gone"),
        (-1, 30, r"loaded nothing from this queue, which was loaded through sequence 30 before: it is a new table"),
        (20, 30, r"through sequence 20, and was at 30 before: it was put back"),
    ],
)
def test_should_say_gone_of_nothing_but_what_is(committed: int, known: int, match: str) -> None:
    error = checks.gap("t", committed, 31, known)
    assert (error.committed, error.earliest) == (committed, 31)
    with pytest.raises(SequenceGap, match=match):
        raise error
    assert ("gone" in str(error)) is (committed == known)


@pytest.mark.parametrize(
    "state",
    [
        seen(9),
        seen(20),
        seen(20, rewrite=OVERWRITE),  # it holds the range: nothing is committed, so nothing is hidden
    ],
)
def test_should_accept_a_table_that_is_where_the_plan_expects_it(state: TableState) -> None:
    checks.may_commit(PLAN, KEYS, state, 1, is_main=True, accept_gaps=False)


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        (seen(9, rewrite=OVERWRITE), TableRewritten, "overwrite at version 7"),
        (seen(-1, table_id="another"), TableReplaced, "made again"),
        (NO_TABLE, TableReplaced, "dropped since"),
        (seen(9, table_id="another"), TableReplaced, "made again"),
        (seen(21), Fenced, "beyond the range"),
        (seen(15), LedgerBehind, "middle of the range"),
        (seen(5), SequenceGap, "through sequence 5"),
    ],
)
def test_should_refuse_a_table_before_the_commit(state: TableState, error: type[BufferQueueError], match: str) -> None:
    with pytest.raises(error, match=match):
        checks.may_commit(PLAN, KEYS, state, 1, is_main=True, accept_gaps=False)


def test_should_let_an_operator_accept_what_can_be_accepted() -> None:
    for state in (seen(9, rewrite=OVERWRITE), NO_TABLE, seen(5), seen(9, table_id="another")):
        checks.may_commit(PLAN, KEYS, state, 1, is_main=True, accept_gaps=True)
    for state, error in ((seen(21), Fenced), (seen(15), LedgerBehind)):
        with pytest.raises(error):
            checks.may_commit(PLAN, KEYS, state, 1, is_main=True, accept_gaps=True)


def test_should_tell_what_our_own_commit_hides() -> None:
    commit = Commit(8, 3, 1, 100, 0.5, after=seen(20))
    checks.not_hidden("t", commit)
    with pytest.raises(TableRewritten, match="our commit of version 8 came after it"):
        checks.not_hidden("t", Commit(8, 3, 1, 100, 0.5, after=seen(20), hidden=OVERWRITE))
