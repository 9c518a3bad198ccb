"""Every name is made and parsed in one place, and what is made parses back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from buffer.clock import make_ulid
from buffer.names import (
    ForeignBatch,
    batch_location,
    batch_ulid,
    dead_letter_location,
    dead_letter_source,
    dead_letters_folder,
    folder_of,
    foreign_batch,
    ledger_path,
    location_problem,
    ulid_time_ms,
)

ULIDS = st.builds(make_ulid, st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
PREFIXES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text.endswith("/"))


@given(PREFIXES, ULIDS)
def test_should_find_the_ulid_that_a_location_was_made_from(prefix: str, ulid: str) -> None:
    location = batch_location(prefix, ulid)
    assert batch_ulid(location) == ulid
    assert folder_of(location) == prefix
    assert foreign_batch(location) is None


@given(ULIDS)
def test_should_tell_the_time_of_a_ulid_as_its_library_does(ulid: str) -> None:
    assert ulid_time_ms(ulid) == ULID.from_str(ulid).milliseconds


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_should_tell_the_time_that_a_ulid_was_made_with(time_ms: int, randomness: bytes) -> None:
    assert ulid_time_ms(make_ulid(time_ms, randomness)) == time_ms


@given(PREFIXES, ULIDS, st.integers(0, 2**64 - 1))
def test_should_parse_the_names_of_the_go_producer(prefix: str, run: str, ordinal: int) -> None:
    location = f"{prefix}/{run}/{ordinal:016x}"
    assert foreign_batch(location) == ForeignBatch(run, ordinal)
    assert batch_ulid(location) is None


RUN = "01J00000000000000000000000"


@pytest.mark.parametrize(
    "location",
    [
        "",
        f"ingest/{RUN}",
        f"ingest/{RUN}/",
        f"ingest/{RUN}/0123456789abcde",
        f"ingest/{RUN}/0123456789abcdef0",
        f"ingest/{RUN}/0123456789ABCDEF",
        f"ingest/{RUN}/0123456789abcdef.batch",
        f"ingest/{RUN.lower()}/0123456789abcdef",
        f"ingest/x{RUN}/0123456789abcdef",
        f"ingest/8{RUN[1:]}/0123456789abcdef",
        f"ingest/{RUN}/deeper/0123456789abcdef",
        f"ingest/{RUN}/0123456789abcdef\n",
    ],
)
def test_should_not_take_another_name_for_the_go_producers(location: str) -> None:
    assert foreign_batch(location) is None


def test_should_keep_an_unreadable_batch_where_nothing_looks_for_batches() -> None:
    for location in (f"ingest/{RUN}.batch", f"{RUN}.batch", f"ingest/{RUN}/0123456789abcdef"):
        kept = dead_letter_location(location)
        assert batch_ulid(kept) is None
        assert foreign_batch(kept) is None
        assert folder_of(kept) != folder_of(location)
        assert dead_letter_source(kept) == location
        assert dead_letter_source(location) is None
    assert dead_letter_location(f"ingest/{RUN}.batch") == f"ingest/dead_letters/{RUN}.batch.dead"
    assert folder_of(dead_letter_location(f"ingest/{RUN}.batch")) == dead_letters_folder("ingest")


def test_should_put_the_ledger_beside_the_manifest() -> None:
    assert ledger_path("a.b/manifest") == "a.b/manifest.ledger"
    assert folder_of("a.b/manifest") == "a.b"
    assert folder_of("manifest") == ""


@pytest.mark.parametrize(
    "location",
    [
        "ingest/" + "\udced" * 60_000,
        "other/" + "x" * 60_000,
        "ingest/" + "\\" * 60_000,
        "ingest/" + "%2525252F" * 6_000,
    ],
    ids=["not allowed", "outside", "another path", "encoded too often"],
)
def test_should_refuse_a_long_location_in_a_few_words(location: str) -> None:
    problem = location_problem(location, ["ingest"])
    assert problem is not None
    assert len(problem) < 3_000
    assert f"… of {len(location):,} characters" in problem
