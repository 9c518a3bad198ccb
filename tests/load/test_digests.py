"""What a plan calls a configuration: whatever decides where a record goes has a part in it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from buffer_delta.config import LoaderConfig
from buffer_delta.formats import Format, resolve_format
from buffer_delta.load.digests import digest, older_digest


def named(form: Format, **settings: Any) -> tuple[str, str]:
    config = LoaderConfig(store="memory://", table="./main", dead_letters="./bad", **settings)
    places = {"./main": "file:/main", "./bad": "file:/bad"}
    return digest(config, form, places), older_digest(config, form)


def arrow_stream(rows: int) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"n": pa.array(range(rows), pa.int64())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_should_name_the_limit_of_what_an_entry_may_expand_to_where_it_makes_entries_bad() -> None:
    """Begun with one limit and finished with another, an entry would be a dead letter and a row."""
    arrow, entries = resolve_format({"type": "arrow", "schema": "n BIGINT"}), pa.array([arrow_stream(1_000)])
    assert [bool(arrow.within(most).parse(entries).bad) for most in (1_000, 100_000)] == [True, False]

    names = [named(arrow, **given) for given in ({}, {"max_batch_bytes": 1_000}, {"max_batch_bytes": 100_000})]
    assert len({name for pair in names for name in pair}) == 6, "each is another configuration"


@pytest.mark.parametrize("form", ["raw", {"type": "json", "schema": "n BIGINT"}])
def test_should_not_name_a_limit_that_decides_nothing(form: Any) -> None:
    """Whole batches beyond it are listed in the plan."""
    json = resolve_format(form)
    assert named(json) == named(json, max_batch_bytes=1_000)
