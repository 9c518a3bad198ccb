"""Entries that are set aside: exact, whatever the number, and small."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import CorruptLedger
from buffer.ledger import entries
from buffer.ledger import plan as decide
from buffer.ledger.plan import Blocked, Ledger, Plan

STANDING = Ledger(
    queue_id="Q", generation=7, app_id="mine", tables=("t",), born=True, plan=Plan(after=4, first=5, last=9)
)


@given(st.sets(st.integers(0, 300)))
def test_should_tell_exactly_which(found: set[int]) -> None:
    text = entries.to_text(found)
    assert set(entries.indices(text)) == found if found else text == ""


@pytest.mark.parametrize("text", ["", "a", "1,", "3-1", "1,1", "5,4", "1-3,3", "-1", "1--2", "٣", " 1", "99999999999"])
def test_should_refuse_what_it_would_not_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a list|not in ascending"):
        entries.spans(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("0-9999999999", "no batch has an entry above 4,294,967,295"), ("0-4294967295", "sets aside 2,000,000 at most")],
)
@pytest.mark.parametrize("where", ["plan", "blocked"])
def test_should_refuse_a_ledger_that_stands_for_more_than_fits_in_memory(text: str, why: str, where: str) -> None:
    """Twenty bytes of it would be eighty gigabytes where they are listed."""
    found = {5: {"why": text}}
    plan = Plan(after=4, first=5, last=9)
    ledger = replace(STANDING, plan=replace(plan, entries=found if where == "plan" else {}))
    if where == "blocked":
        ledger = replace(ledger, blocked=Blocked(5, 9, "why", {}, found))
    with pytest.raises(CorruptLedger, match=why):
        Ledger.from_bytes(ledger.to_bytes())


HALVES = "\ud83d", "\ude00"
"""Of one character. JSON joins them when it is read: written apart and together, they would be one key twice."""


def test_should_be_readable_whatever_halves_of_characters_the_reasons_hold() -> None:
    found = entries.of(
        [(5, 0, "bad " + "".join(HALVES)), (5, 1, "bad \U0001f600"), (6, 0, HALVES[0]), (6, 1, HALVES[1])]
    )
    assert found == {5: {"bad \U0001f600": "0-1"}, 6: {"\ufffd": "0-1"}}
    plan = Plan(after=4, first=5, last=9).split({7: "".join(HALVES), 8: "x" + HALVES[0]}, found)
    blocked = Blocked(5, 9, f"why{HALVES[1]}", {5: HALVES[0]}, found)
    ledger = decide.blocked_by(replace(STANDING, plan=plan), blocked, location="l")
    again = Ledger.from_bytes(ledger.to_bytes())
    assert (again.plan, again.blocked) == (ledger.plan, ledger.blocked)
    assert again.plan is not None
    assert again.plan.quarantined == {7: "\U0001f600", 8: "x\ufffd"}
    assert decide.blocked_by(again, blocked, location="l") is again, "the same reason is not written again and again"
    json.dumps(again.to_document(), ensure_ascii=False).encode("utf-8")


def test_should_keep_one_reason_for_each_entry_and_merge() -> None:
    one = entries.of([(1, 7, "x"), (1, 8, "x"), (1, 3, "y\n  z"), (2, 0, "x"), (1, 7, "again")])
    assert one == {1: {"y z": "3", "x": "7-8"}, 2: {"x": "0"}}
    assert entries.merged(one, {1: {"other": "8-9"}}) == {1: {"y z": "3", "x": "7-8", "other": "9"}, 2: {"x": "0"}}
    assert entries.count(one) == 4


def test_should_stay_small_whatever_the_reasons_are() -> None:
    many = entries.of((1, n, f"record {n} {'x' * 1000}") for n in range(20_000))
    assert entries.count(many) == 20_000
    assert len(many[1]) == entries.REASONS_MAX + 1
    assert len(json.dumps(many)) < 300_000


def test_should_keep_entries_and_rules_in_the_plan() -> None:
    aside = {6: {"bad": "3,7-9"}}
    plan = replace(STANDING, plan=STANDING.plan.split({5: "gone"}, aside, "rules")) if STANDING.plan else STANDING
    read = Ledger.from_bytes(plan.to_bytes())
    assert read == plan
    assert read.plan is not None
    assert (read.plan.entries, read.plan.rules) == (aside, "rules")
    assert read.plan.undecided() == Plan(after=4, first=5, last=9, attempts=0, tables=())


def test_should_write_what_older_releases_read_where_nothing_is_set_aside() -> None:
    split = STANDING.changed(plan=Plan(after=4, first=5, last=9).split({5: "gone"}), blocked=Blocked(5, 9, "bad"))
    document = json.loads(split.to_bytes())["plan"]
    assert set(document["range"]) == {"after", "first", "last", "attempts", "digest", "table_ids", "quarantined"}
    assert set(document["blocked"]) == {"first", "last", "reason", "batches"}
    assert Ledger.from_bytes(split.to_bytes()) == split


@pytest.mark.parametrize(
    "wrong", [{"x": {"bad": "1"}}, {"6": "bad"}, {"6": {"bad": "2-1"}}, {"6": {"bad": 1}}, {"6": {"bad": ""}}, []]
)
@pytest.mark.parametrize("where", ["range", "blocked"])
def test_should_refuse_damaged_entries(where: str, wrong: object) -> None:
    aside = {6: {"bad": "1"}}
    standing = STANDING.changed(
        plan=Plan(after=4, first=5, last=9).split({}, aside), blocked=Blocked(5, 9, "bad", {}, aside)
    )
    document = json.loads(standing.to_bytes())
    document["plan"][where]["entries"] = wrong
    with pytest.raises(CorruptLedger, match="entries"):
        Ledger.from_bytes(json.dumps(document).encode())


def test_should_give_up_just_the_blocked_entries() -> None:
    aside = {6: {"bad": "3"}}
    blocked = STANDING.changed(blocked=Blocked(5, 9, "bad", {5: "gone"}, aside))
    free = decide.unblocked(blocked, skip=True)
    assert free is not None
    assert free.plan == Plan(after=4, first=5, last=9, attempts=0, quarantined={5: "gone"}, entries=aside)
    again = decide.unblocked(blocked, skip=False)
    assert again is not None
    assert again.plan == Plan(after=4, first=5, last=9, attempts=0)
