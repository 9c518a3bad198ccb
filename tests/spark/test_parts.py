"""Rows of several tables from one job, where the job or what it told is not as expected. No session: jobs run here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from buffer_delta.decode.group import Group
from buffer_delta.decode.parting import Parting
from buffer_delta.delta.sink import WrittenFiles
from buffer_delta.errors import RowsMissing
from buffer_delta.spark import parts, rows
from buffer_delta.spark.parts import PartRows, parted
from buffer_delta.spark.rows import TaskRows

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string())])
ROUTED = Parting("main", route="kind", routes={"click": "clicks"})


def decode(_group: Group) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": [1, 2, 3], "kind": ["click", None, None]}, SCHEMA)


class Feed:
    def __init__(self) -> None:
        self.count = 0

    def add(self, rows: pa.RecordBatch, /) -> None:
        self.count += rows.num_rows

    held_bytes = 0
    held_max_bytes = 1

    def relieve(self) -> None:
        raise AssertionError("nothing is held")

    def end(self) -> list[bytes]:
        return [json.dumps({"rows": self.count, "bytes": 1, "add": {}}).encode()]

    def stop(self) -> None:
        pass


@dataclass(frozen=True)
class Sink:
    """Equal ones do the same."""

    name: str = "same"

    def begin(self) -> Feed:
        return Feed()

    def __call__(self, batches: Iterable[pa.RecordBatch], /) -> Iterator[bytes]:
        feed = self.begin()
        for batch in batches:
            feed.add(batch)
        yield from feed.end()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the jobs did: an error that stands here is raised by the next one."""
    planned: list[str] = []

    def gather(_spark: object, told: Callable[[Group], Iterator[bytes]], groups: Sequence[Group]) -> list[bytes]:
        if planned:
            raise PySparkException(planned.pop())
        return [line for group in groups for line in told(group)]

    monkeypatch.setattr(parts, "gather", gather)
    monkeypatch.setattr(rows, "gather", gather)
    return planned


def made(*guessed: str) -> dict[str, PartRows]:
    task_rows = TaskRows(None, decode, [Group([]), Group([])], SCHEMA)  # type: ignore[arg-type]  # no job is run
    return parted(task_rows, ROUTED, {name: Sink() for name in guessed})


def written(rows: PartRows, sink: Sink) -> int:
    return WrittenFiles.of(rows.drained(sink), rows.count).rows


@pytest.mark.parametrize("guessed", [(), ("main",), ("main", "clicks")])
@pytest.mark.parametrize("fails", [[], ["StorageError: the put of a data file timed out"]])
@pytest.mark.parametrize("sink", [Sink(), Sink("another one")])
def test_should_write_every_row_though_the_guessing_job_failed(
    jobs: list[str], guessed: tuple[str, ...], fails: list[str], sink: Sink
) -> None:
    """The sink that was guessed is the very one that the rows go into: nothing has changed but that a put failed."""
    if guessed:
        jobs += fails
    tables = made(*guessed)
    assert {name: rows.count for name, rows in tables.items()} == {"main": 4, "clicks": 2}
    assert {name: written(rows, sink) for name, rows in tables.items()} == {"main": 4, "clicks": 2}
    assert written(tables["main"], sink) == 4, "a second time makes files of its own"


def test_should_raise_what_fails_without_a_guess_too(jobs: list[str]) -> None:
    jobs += ["again", "first"]
    with pytest.raises(PySparkException, match="again"):
        made("main")


@pytest.mark.parametrize("told", [0, 3, 5])
def test_should_refuse_files_with_other_rows_than_were_counted(told: int) -> None:
    lines = [json.dumps({"rows": told, "bytes": 1, "add": {}}).encode()] if told else []
    with pytest.raises(RowsMissing, match=f"hold {told} rows, and 4 were counted") as raised:
        WrittenFiles.of(lines, 4)
    assert (raised.value.counted, raised.value.written) == (4, told)
    assert WrittenFiles.of(lines, None).rows == told, "where nobody has counted, the files tell"
