"""Rows as a table's files hold them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from buffer_delta.delta.conform import conform, conformed


def test_should_find_columns_by_name_in_any_case() -> None:
    batch = pa.RecordBatch.from_pydict({"B": [1, 2], "other": [True, None], "a": ["x", None]})
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(pa.int32()))])
    found = conform(batch, schema)
    assert found.schema.names == ["a", "b", "other"], "what is missing or unknown is for others to judge"
    assert found.to_pydict() == {"a": ["x", None], "b": [1, 2], "other": [True, None]}


def test_should_leave_values_and_their_types_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"N": pa.array([1, None], pa.int32())})
    found = conform(batch, pa.schema([("n", pa.date32())]))
    assert found.schema == pa.schema([("n", pa.int32())])
    assert found.column(0).to_pylist() == [1, None]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_should_conform_what_is_nested_also_in_slices(start: int) -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    rows = [
        {"s": {"x": 1, "y": "a"}, "l": [{"x": 2, "y": None}, None], "m": [("k", {"x": 3, "y": "c"})]},
        {"s": None, "l": None, "m": None},
        {"s": {"x": None, "y": None}, "l": [], "m": []},
        {"s": {"x": 9, "y": "z"}, "l": [{"x": 8, "y": "q"}], "m": [("a", None)]},
    ]
    given = pa.schema([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    batch = pa.RecordBatch.from_pylist(rows, schema=given).slice(start)
    wider = pa.struct([("Y", pa.string()), ("z", pa.bool_()), ("x", pa.int32())])
    schema = pa.schema([("s", wider), ("l", pa.list_(wider)), ("m", pa.map_(pa.string(), wider))])

    def widened(value: dict[str, object] | None) -> dict[str, object] | None:
        return None if value is None else {"Y": value["y"], "z": None, "x": value["x"]}

    def expected(row: dict[str, object]) -> dict[str, object]:
        held, listed, mapped = row["s"], row["l"], row["m"]
        return {
            "s": widened(held),  # type: ignore[arg-type]
            "l": None if listed is None else [widened(each) for each in listed],  # type: ignore[attr-defined]
            "m": None if mapped is None else [(k, widened(v)) for k, v in mapped],  # type: ignore[attr-defined]
        }

    found = conform(batch, schema)
    found.validate(full=True)
    assert found.schema.equals(schema)
    assert found.to_pylist() == [expected(row) for row in rows[start:]]


def test_should_leave_out_batches_without_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array([], pa.int64())})
    assert list(conformed([batch, batch], batch.schema)) == []
