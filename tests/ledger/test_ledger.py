"""The ledger as a value: what it writes it reads back, and it refuses whatever it does not fully understand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import CorruptLedger
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.names import ledger_path

PLAN = Plan(
    after=9,
    first=10,
    last=20,
    attempts=2,
    digest="d1",
    table_ids={"events": "id-1", "dead": None},
    quarantined={12: "not zstd"},
)
BLOCKED = Blocked(first=10, last=20, reason="cannot be read", batches={12: "not zstd", 13: "gone"})
FULL = Ledger(
    queue_id="01M7JW6V2BKF04N3ANEAY9KR1J",
    app_id="buffer/x",
    tables=("events", "dead"),
    born=True,
    generation=7,
    epoch=3,
    next_sequence=21,
    last_location="ingest/ü.batch",
    plan=PLAN,
    blocked=BLOCKED,
)
FRESH = Ledger(queue_id="01M7JW6V2BKF04N3ANEAY9KR1J")


def document_of(ledger: Ledger) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ledger.to_bytes())
    return document


def with_value(path: str, value: Any) -> bytes:
    document = document_of(FULL)
    inner = document
    *parents, name = path.split(".")
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    return json.dumps(document).encode()


def with_text(name: str, text: str) -> bytes:
    """A field of the envelope, as it stands in the file."""
    document = json.dumps({**document_of(FULL), name: "HERE"})
    return document.replace('"HERE"', text).encode()


def without(path: str) -> bytes:
    document = document_of(FULL)
    inner = document
    *parents, name = path.split(".")
    for parent in parents:
        inner = inner[parent]
    del inner[name]
    return json.dumps(document).encode()


def test_should_lie_beside_the_manifest() -> None:
    assert ledger_path("ingest/manifest") == "ingest/manifest.ledger"


@pytest.mark.parametrize("ledger", [FRESH, FULL], ids=["fresh", "full"])
def test_should_read_back_what_it_wrote(ledger: Ledger) -> None:
    assert Ledger.from_bytes(ledger.to_bytes()) == ledger


def test_should_be_readable_by_a_person() -> None:
    text = FULL.to_bytes().decode("utf-8")
    assert '"last_location": "ingest/ü.batch"' in text
    assert text.startswith('{\n "version": 2,\n "generation": 7,\n "queue_id"')
    assert text.endswith("}\n")


texts = st.text(st.characters(), max_size=8)  # lone surrogates included: a reason may quote a file name
sequences = st.integers(0, 2**64 - 1)
reasons = st.dictionaries(sequences, texts, max_size=3)
plans = st.builds(
    lambda after, gap, size, **rest: Plan(after=after, first=after + gap, last=after + gap + size, **rest),
    after=st.integers(-1, 2**40),
    gap=st.integers(1, 5),
    size=st.integers(0, 50),
    attempts=st.integers(0, 99),
    digest=texts,
    table_ids=st.dictionaries(texts, st.none() | texts, max_size=3),
    quarantined=st.none() | reasons,
)
ledgers = st.builds(
    Ledger,
    queue_id=texts,
    app_id=st.none() | texts,
    tables=st.lists(texts, max_size=3).map(tuple),
    born=st.booleans(),
    generation=sequences,
    epoch=sequences,
    next_sequence=sequences,
    last_location=st.none() | texts,
    plan=st.none() | plans,
    blocked=st.none() | st.builds(Blocked, first=sequences, last=sequences, reason=texts, batches=reasons),
)


@given(ledgers)
def test_should_round_trip_any_ledger(ledger: Ledger) -> None:
    data = ledger.to_bytes()
    assert Ledger.from_bytes(data) == ledger
    data.decode("utf-8")


@given(st.binary(max_size=200))
def test_should_raise_only_its_own_error_on_noise(data: bytes) -> None:
    with pytest.raises(CorruptLedger):
        Ledger.from_bytes(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
field_paths = st.sampled_from(
    [*document_of(FULL), *(f"plan.{k}" for k in document_of(FULL)["plan"])]
    + [f"plan.{part}.{k}" for part in ("range", "blocked") for k in document_of(FULL)["plan"][part]]
)


@given(path=field_paths, value=json_values)
def test_should_accept_or_refuse_any_value_of_a_field_but_never_misread_it(path: str, value: Any) -> None:
    data = with_value(path, value)
    try:
        ledger = Ledger.from_bytes(data)
    except CorruptLedger:
        return
    written = json.loads(ledger.to_bytes())
    assert json.dumps(written, sort_keys=True) == json.dumps(json.loads(data), sort_keys=True)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object but a list"),
        (b"{}", "has version None"),
        (with_value("version", 3), "has version 3: this release reads versions 1 to 2; upgrade it"),
        (with_value("version", 0), "has version 0"),
        (with_value("version", True), "has version True"),
        (with_value("version", "1"), "has version '1'"),
        (without("epoch"), "missing field epoch"),
        (without("plan.range"), "missing field plan.range"),
        (without("plan.range.last"), "missing field plan.range.last"),
        (without("plan.blocked.batches"), "missing field plan.blocked.batches"),
        (with_value("future", 1), "future is 1, not dict"),
        (with_value("future", None), "future is None, not dict"),
        (with_value("plan", None), "plan is None, not dict"),
        (with_value("plan.future", 1), "unknown field plan.future"),
        (with_value("plan.range.future", 1), "unknown field plan.range.future"),
        (with_value("epoch", "3"), "epoch is '3', not int"),
        (with_value("epoch", True), "epoch is True, not int"),
        (with_value("epoch", -1), "epoch is -1, below zero"),
        (with_value("generation", 1.5), "the number 1.5, which is not a whole one"),
        (with_value("queue_id", None), "queue_id is None, not str"),
        (with_value("plan.born", 1), "plan.born is 1, not bool"),
        (with_value("plan.app_id", 5), "plan.app_id is 5, not str or null"),
        (with_value("plan.tables", "events"), "plan.tables is 'events', not list"),
        (with_value("plan.tables", ["a", 1]), r"plan.tables\[1\] is 1, not str"),
        (with_value("plan.range", 0), "plan.range is 0, not dict or null"),
        (with_value("plan.range", {}), "missing field plan.range.after"),
        (with_value("plan.blocked", False), "plan.blocked is False, not dict or null"),
        (with_value("plan.range.first", 9), r"plan.range 9\.\.20 after 9 is not a range"),
        (with_value("plan.range.last", 9), r"plan.range 10\.\.9 after 9 is not a range"),
        (with_value("plan.range.after", -2), "is not a range"),
        (with_value("plan.range.attempts", -1), "plan.range.attempts is -1, below zero"),
        (with_value("plan.range.table_ids", {"t": 1}), r"plan.range.table_ids\[t\] is 1, not str or null"),
        (with_value("plan.range.quarantined", {"x": "why"}), "plan.range.quarantined has the key 'x'"),
        (with_value("plan.range.quarantined", {"-1": "why"}), "plan.range.quarantined has the key '-1'"),
        (with_value("plan.range.quarantined", {"01": "why"}), "plan.range.quarantined has the key '01'"),
        (with_value("plan.range.quarantined", {"9" * 5000: "why"}), "plan.range.quarantined has the key '999"),
        (with_value("plan.range.quarantined", {"1": None}), r"plan.range.quarantined\[1\] is None, not str"),
        (with_value("plan.blocked.batches", {"1": 2}), r"plan.blocked.batches\[1\] is 2, not str"),
        (b'{"version": 2, "version": 2}', "the key 'version' twice"),
        (with_text("future", '{"a": {"b": 1, "b": 1}}'), "the key 'b' twice"),
        (with_text("epoch", "9" * 5000), "of 5,000 digits"),
        (with_text("epoch", "-" + "9" * 100_000), "of 100,001 digits"),
        (with_text("future", '{"a": [1e400]}'), "the number 1e400, which is not a whole one"),
        (with_text("future", '{"a": NaN}'), "the number NaN"),
        (with_text("future", '{"a": -Infinity}'), "the number -Infinity"),
        (with_text("future", '{"a": ' + "[" * 60 + "]" * 60 + "}"), "nested more than 32 deep"),
        (with_text("future", '{"a": ' + "[" * 2000 + "]" * 2000 + "}"), "nested more than 32 deep|recursion"),
        (with_text("future", '{"a":' * 900 + "1" + "}" * 900), "nested more than 32 deep"),
    ],
)
def test_should_name_what_is_wrong(data: bytes, why: str) -> None:
    with pytest.raises(CorruptLedger, match=why) as caught:
        Ledger.from_bytes(data)
    assert caught.value.location is None
    with pytest.raises(CorruptLedger, match=r"the ledger 'q\.ledger'") as caught:
        Ledger.from_bytes(data, location="q.ledger")
    assert caught.value.location == "q.ledger"


def test_should_keep_the_version_it_cannot_read_as_a_fact() -> None:
    with pytest.raises(CorruptLedger) as caught:
        Ledger.from_bytes(with_value("version", 3))
    assert caught.value.version == 3


def test_should_not_repeat_a_huge_value_in_its_message() -> None:
    for data in (with_value("plan.born", "x" * 10**6), with_value("x" * 10**6, 1), with_text("epoch", "9" * 10**6)):
        with pytest.raises(CorruptLedger) as caught:
            Ledger.from_bytes(data)
        assert len(str(caught.value)) < 500


def test_should_not_name_all_of_a_thousand_unknown_fields() -> None:
    document = document_of(FULL)
    document["plan"].update({f"other{n}": n for n in range(1000)})
    with pytest.raises(CorruptLedger, match=r"unknown field plan\.other0, ") as caught:
        Ledger.from_bytes(json.dumps(document).encode())
    assert len(str(caught.value)) < 1200


def test_should_count_every_change_so_that_no_content_comes_back() -> None:
    once = FULL.changed(blocked=None)
    assert (once.generation, once.blocked, once.plan) == (8, None, PLAN)
    back = once.changed(blocked=BLOCKED)
    assert back.to_bytes() != FULL.to_bytes()
    assert FULL.generation == 7


@pytest.mark.parametrize(
    ("ledger", "was"),
    [
        (FRESH, False),
        (FRESH.changed(born=True), False),
        (FRESH.changed(epoch=1), True),
        (FRESH.changed(next_sequence=1), True),
        (FRESH.changed(plan=PLAN), True),
    ],
)
def test_should_know_whether_a_manifest_must_have_been_there(ledger: Ledger, was: bool) -> None:
    assert ledger.was_claimed is was


def test_should_never_change_the_range_of_a_plan() -> None:
    for changed in (PLAN.tried_again(), PLAN.forgiven(), PLAN.split({11: "bad"})):
        assert (changed.after, changed.first, changed.last) == (9, 10, 20)
        assert (changed.digest, changed.table_ids) == (PLAN.digest, PLAN.table_ids)
    assert PLAN.tried_again().attempts == 3
    assert PLAN.forgiven().attempts == 0
    assert PLAN.split({11: "bad"}).quarantined == {11: "bad"}
    assert PLAN.split({}).quarantined == {}


def test_should_keep_undecided_apart_from_nothing_to_quarantine() -> None:
    for quarantined in (None, {}):
        ledger = FULL.changed(plan=Plan(after=-1, first=0, last=0, quarantined=quarantined))
        plan = Ledger.from_bytes(ledger.to_bytes()).plan
        assert plan is not None
        assert plan.quarantined == quarantined
        assert (plan.quarantined is None) is (quarantined is None)
