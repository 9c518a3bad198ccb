"""What is refused before and right after a commit, decided from what one look at a table found."""

from __future__ import annotations

import pytest

from buffer.errors import BufferQueueError, Fenced
from buffer.ledger.plan import Plan
from buffer_delta.delta.state import NO_TABLE, Commit, Rewrite, TableState
from buffer_delta.errors import LedgerBehind, SequenceGap, TableReplaced, TableRewritten
from buffer_delta.load import checks

PLAN = Plan(after=9, first=10, last=20, table_ids={"t": "id"})
OVERWRITE = Rewrite("overwrite", 7, "2023-11-14T22:13:20Z")


def seen(position: int, *, table_id: str = "id", rewrite: Rewrite | None = None) -> TableState:
    return TableState(version=8, table_id=table_id, position=position, rewrite=rewrite)


@pytest.mark.parametrize(
    "state",
    [
        seen(9),
        seen(20),
        seen(20, rewrite=OVERWRITE),  # it holds the range: nothing is committed, so nothing is hidden
    ],
)
def test_should_accept_a_table_that_is_where_the_plan_expects_it(state: TableState) -> None:
    checks.may_commit(PLAN, "t", state, 1, accept_gaps=False)


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
        checks.may_commit(PLAN, "t", state, 1, accept_gaps=False)


def test_should_let_an_operator_accept_what_can_be_accepted() -> None:
    for state in (seen(9, rewrite=OVERWRITE), NO_TABLE, seen(5), seen(9, table_id="another")):
        checks.may_commit(PLAN, "t", state, 1, accept_gaps=True)
    for state, error in ((seen(21), Fenced), (seen(15), LedgerBehind)):
        with pytest.raises(error):
            checks.may_commit(PLAN, "t", state, 1, accept_gaps=True)


def test_should_tell_what_our_own_commit_hides() -> None:
    commit = Commit(8, 3, 1, 100, 0.5, after=seen(20))
    checks.not_hidden("t", commit)
    with pytest.raises(TableRewritten, match="our commit of version 8 came after it"):
        checks.not_hidden("t", Commit(8, 3, 1, 100, 0.5, after=seen(20), hidden=OVERWRITE))
