"""Rows of several tables, told apart where they are made."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from buffer_delta.decode.group import Group
from buffer_delta.decode.parting import Feed, Found, OnePart, Parting, PartTask

DEAD = pa.struct([("error", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("_dead", DEAD)])
ROUTED = Parting("main", "dead", "kind", {"click": "clicks", "view": "views"})


def batch(*rows: tuple[int | None, str | None, str | None]) -> pa.RecordBatch:
    """Rows of an id, a kind and, of dead letters, an error."""
    ids, kinds, errors = zip(*rows, strict=True)
    dead = pa.array([None if error is None else {"error": error} for error in errors], DEAD)
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(kinds, pa.string()), dead], schema=SCHEMA)


def parts(parting: Parting, rows: pa.RecordBatch) -> dict[str, list[dict[str, object]]]:
    found = list(parting.parts(rows))
    assert len({table for table, _ in found}) == len(found), "a table comes once"
    for table, its in found:
        assert its.schema == parting.columns(table, rows.schema)
        assert its.num_rows, "a table that gets nothing does not come"
    return {table: its.to_pylist() for table, its in found}


def test_should_send_each_row_to_its_table() -> None:
    rows = batch((1, "view", None), (2, None, None), (None, None, "bad"), (3, "click", None), (4, "Click", None))
    assert parts(ROUTED, rows) == {
        "dead": [{"error": "bad"}],
        "clicks": [{"id": 3, "kind": "click"}],
        "views": [{"id": 1, "kind": "view"}],
        "main": [{"id": 2, "kind": None}, {"id": 4, "kind": "Click"}],
    }


def test_should_name_only_tables_that_get_rows() -> None:
    assert list(parts(ROUTED, batch((1, "other", None)))) == ["main"]
    assert list(parts(ROUTED, batch((None, None, "bad")))) == ["dead"]
    assert list(parts(ROUTED, batch((1, "view", None)))) == ["views"]
    assert list(parts(ROUTED, batch((1, "view", None)).slice(1))) == []


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [(pa.int32(), [-7, 7], "-7"), (pa.bool_(), [True, False], "true"), (pa.int64(), [2**62, 1], str(2**62))],
)
def test_should_route_by_what_a_value_is_called_in_spark(kind: pa.DataType, values: list[object], text: str) -> None:
    assert Parting.knows(kind)
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["by"])
    found = dict(Parting("main", route="by", routes={text: "one"}).parts(rows))
    assert found["one"].to_pydict() == {"by": values[:1]}
    assert found["main"].to_pydict() == {"by": values[1:]}


def test_should_not_claim_to_know_how_spark_spells_other_types() -> None:
    for kind in (pa.float64(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.binary(), pa.list_(pa.string())):
        assert not Parting.knows(kind)


@dataclass(frozen=True)
class Ids:
    """A sink that says which ids it got, and in how many batches. Equal ones do the same."""

    log: list[str] = field(default_factory=list, compare=False)

    def begin(self) -> Feed:
        return _IdsFeed(self.log)


class _IdsFeed:
    def __init__(self, log: list[str]) -> None:
        self._log = log
        self._ids: list[list[int]] = []

    def add(self, rows: pa.RecordBatch, /) -> None:
        self._ids.append(rows.column("id").to_pylist())

    held_bytes = 0
    held_max_bytes = 1

    def relieve(self) -> None:
        raise AssertionError("nothing is held")

    def end(self) -> list[bytes]:
        return [repr(self._ids).encode()]

    def stop(self) -> None:
        self._log.append("stopped")


def decoded(_group: Group) -> Iterator[pa.RecordBatch]:
    yield batch((1, "view", None), (2, None, None))
    yield batch((None, None, "bad"), (3, None, None))


def test_should_feed_the_sinks_that_are_known_and_count_the_rest() -> None:
    main, clicks = Ids(), Ids()
    task = PartTask(decoded, ROUTED, {"main": main, "clicks": clicks})
    (told,) = task(Group([]))
    found = Found.of(told)
    assert found.counts == {"main": 2, "views": 1, "dead": 1}
    assert found.told == {"main": [b"[[2], [3]]"]}, "a table that gets nothing is not begun"
    assert (main.log, clicks.log) == (["stopped"], [])
    assert pickle.loads(pickle.dumps(task)) == task


@dataclass(frozen=True)
class Holding:
    """A sink that holds every row, until it is told to let go. A byte each."""

    feeds: list[_HoldingFeed]

    def begin(self) -> Feed:
        self.feeds.append(_HoldingFeed(self.feeds))
        return self.feeds[-1]


class _HoldingFeed(_IdsFeed):
    held_max_bytes = 10

    def __init__(self, feeds: list[_HoldingFeed]) -> None:
        super().__init__([])
        self._feeds = feeds
        self.held_bytes = 0
        self.most = 0
        self.relieved = 0

    def add(self, rows: pa.RecordBatch, /) -> None:
        assert sum(feed.held_bytes for feed in self._feeds) <= 10, "before this batch"
        self.held_bytes += rows.num_rows

    def relieve(self) -> None:
        assert self.held_bytes == max(feed.held_bytes for feed in self._feeds)
        self.held_bytes = 0
        self.relieved += 1


def test_should_hold_no_more_for_many_tables_than_for_one() -> None:
    routes = {f"k{number}": f"t{number}" for number in range(9)}

    def decode(_group: Group) -> Iterator[pa.RecordBatch]:
        for start in range(20):
            yield batch(*((start, f"k{number}", None) for number in range(9)))

    feeds: list[_HoldingFeed] = []
    sink = Holding(feeds)
    list(PartTask(decode, Parting("main", "dead", "kind", routes), dict.fromkeys(routes.values(), sink))(Group([])))
    assert len(feeds) == 9
    assert sum(feed.relieved for feed in feeds) > 9


def test_should_stop_every_sink_when_decoding_fails() -> None:
    def failing(group: Group) -> Iterator[pa.RecordBatch]:
        yield from decoded(group)
        raise ValueError("damaged")

    main, views = Ids(), Ids()
    with pytest.raises(ValueError, match="damaged"):
        list(PartTask(failing, ROUTED, {"main": main, "views": views})(Group([])))
    assert main.log == views.log == ["stopped"]


def test_should_give_the_rows_of_one_table_alone() -> None:
    assert [rows.to_pylist() for rows in OnePart(decoded, ROUTED, "main")(Group([]))] == [
        [{"id": 2, "kind": None}],
        [{"id": 3, "kind": None}],
    ]


def test_should_stop_at_a_row_with_a_value_in_the_watched_column() -> None:
    def decode(_: Group) -> Iterator[pa.RecordBatch]:
        yield batch((1, None, None))
        yield batch((2, "new", None))
        raise AssertionError("the rest is not decoded")

    (said,) = PartTask(decode, Parting("main"), {}, watched="kind")(Group([]))
    assert Found.of(said) == Found({}, {}, has_rescued=True)
    (said,) = PartTask(lambda _: iter([batch((1, None, None))]), Parting("main"), {}, watched="kind")(Group([]))
    assert Found.of(said) == Found({"main": 1}, {})
