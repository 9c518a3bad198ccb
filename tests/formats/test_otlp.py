"""otlp: requests to rows; what the library does not know is rescued, another signal is set aside."""

from __future__ import annotations

import base64
import json
import math
import pickle
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest as Logs
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as Metrics
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Traces

from buffer.errors import InvalidConfig
from buffer_delta.formats import OtlpFormat, resolve_format
from tests.formats.format_support import parse, peak_bytes
from tests.formats.test_nothing_changes import EXAMPLES

NOW = 1_800_000_000_123_456_789
RESOURCE = {"attributes": [{"key": "service", "value": {"string_value": "shop"}}]}


def logs(*bodies: Any, **record: Any) -> bytes:
    records = [{"time_unix_nano": NOW, "severity_number": 9, "body": body, **record} for body in bodies]
    scope = {"scope": {"name": "lib", "version": "1"}, "log_records": records, "schema_url": "s"}
    return bytes(
        Logs(resource_logs=[{"resource": RESOURCE, "scope_logs": [scope], "schema_url": "r"}]).SerializeToString()
    )


def metrics() -> bytes:
    points = [{"time_unix_nano": NOW, "as_int": -5, "attributes": RESOURCE["attributes"]}, {"as_double": 0.5}]
    found = [{"name": "a", "unit": "1", "gauge": {"data_points": points}}]
    found += [{"name": "b", "sum": {"data_points": points[:1], "aggregation_temporality": 2, "is_monotonic": True}}]
    found += [{"name": "c", "histogram": {"data_points": [{"count": 2**63, "bucket_counts": [1, 2], "sum": 1.5}]}}]
    return bytes(Metrics(resource_metrics=[{"scope_metrics": [{"metrics": found}]}]).SerializeToString())


def traces() -> bytes:
    span = {"trace_id": b"t" * 16, "span_id": b"s" * 8, "name": "get", "kind": 2, "start_time_unix_nano": NOW}
    span |= {"events": [{"name": "e", "time_unix_nano": 1}], "status": {"code": 2, "message": "no"}}
    return bytes(
        Traces(resource_spans=[{"resource": RESOURCE, "scope_spans": [{"spans": [span, {}]}]}]).SerializeToString()
    )


def rows(signal: str, *entries: bytes) -> tuple[list[tuple[int, dict[str, Any]]], dict[int, str]]:
    parsed = parse(OtlpFormat(signal), *entries)
    assert parsed.entries is not None
    parsed.rows.validate(full=True)
    return list(zip(parsed.entries.tolist(), parsed.rows.to_pylist(), strict=True)), dict(parsed.bad)


def test_should_make_a_row_of_each_log_record() -> None:
    nested = {"kvlist_value": {"values": [{"key": "k", "value": {"int_value": 2**62}}]}}
    found, bad = rows(
        "logs", logs({"string_value": "one"}, nested, trace_id=b"\x01"), logs(), logs({"double_value": 1})
    )
    assert bad == {}
    assert [entry for entry, _ in found] == [0, 0, 2]
    row = found[0][1]
    assert row["time_unix_nano"] == Decimal(NOW)
    assert row["severity_number"] == "SEVERITY_NUMBER_INFO"
    assert (row["trace_id"], row["resource_schema_url"], row["scope_schema_url"]) == (b"\x01", "r", "s")
    assert (row["scope"]["name"], row["scope"]["version"]) == ("lib", "1")
    assert row["resource"]["attributes"][0]["key"] == "service"
    assert row["resource"]["attributes"][0]["value"]["string_value"] == "shop"
    assert row["body"]["string_value"] == "one"
    inner = found[1][1]["body"]
    assert json.loads(inner.pop("kvlist_value")) == {"values": [{"key": "k", "value": {"intValue": str(2**62)}}]}
    assert set(inner.values()) == {None}
    assert found[2][1]["body"]["double_value"] == 1.0
    assert {row["_rescued_data"] for _, row in found} == {None}


def test_should_make_a_row_of_each_metric() -> None:
    found, bad = rows("metrics", metrics())
    assert bad == {}
    one, two, three = [row for _, row in found]
    assert (one["name"], one["unit"], one["resource"], one["sum"]) == ("a", "1", None, None)
    points = one["gauge"]["data_points"]
    assert (points[0]["as_int"], points[0]["as_double"], points[1]["as_double"]) == (-5, None, 0.5)
    assert two["sum"]["aggregation_temporality"] == "AGGREGATION_TEMPORALITY_CUMULATIVE"
    assert two["sum"]["is_monotonic"] is True
    (point,) = three["histogram"]["data_points"]
    assert (point["count"], point["bucket_counts"], point["sum"], point["min"]) == (2**63, [1, 2], 1.5, None)


def test_should_make_a_row_of_each_span() -> None:
    found, bad = rows("traces", traces())
    assert bad == {}
    span = found[0][1]
    assert (span["trace_id"], span["kind"], span["status"]["code"]) == (
        b"t" * 16,
        "SPAN_KIND_SERVER",
        "STATUS_CODE_ERROR",
    )
    assert span["events"][0]["name"] == "e"
    assert found[1][1]["name"] == ""
    assert found[1][1]["status"] is None


@pytest.mark.parametrize("signal", ["logs", "metrics", "traces"])
def test_should_set_other_signals_aside_and_load_their_neighbours(signal: str) -> None:
    entries = {"logs": logs({"string_value": "x"}), "metrics": metrics(), "traces": traces()}
    found, bad = rows(signal, *entries.values(), b"\xff")
    names = list(entries)
    assert {entry for entry, _ in found} == {names.index(signal)}
    for at, name in enumerate(names):
        assert name == signal or bad[at] == f"these are {name}, not {signal}" or "no request of" in bad[at]
    assert "no request of" in bad[3]


def test_should_rescue_what_the_library_does_not_know() -> None:
    unknown = b"\xf8\x3f\x05"  # field 1023
    good = logs({"string_value": "x"}, {"string_value": "y"})
    strange = good + unknown
    deep = Logs.FromString(good)
    deep.resource_logs[0].scope_logs[0].log_records[1].body.array_value.values.add().MergeFromString(unknown)
    number = logs({"string_value": "z"}, severity_number=99)
    found, bad = rows("logs", good, strange, deep.SerializeToString(), number, unknown)
    assert bad == {4: "it has no logs, but fields that are not known"}
    rescued = {entry: row["_rescued_data"] for entry, row in reversed(found)}
    assert rescued[0] is None
    for entry, payload in ((1, strange), (2, deep.SerializeToString()), (3, number)):
        assert base64.b64decode(json.loads(rescued[entry])["entry"]) == payload
    assert [row["_rescued_data"] is None for entry, row in found if entry == 1] == [False, True]
    assert found[-1][1]["severity_number"] is None


@EXAMPLES
@given(
    st.lists(
        st.one_of(
            st.text(max_size=5).map(lambda v: ("string_value", v)),
            st.booleans().map(lambda v: ("bool_value", v)),
            st.integers(-(2**63), 2**63 - 1).map(lambda v: ("int_value", v)),
            st.floats().map(lambda v: ("double_value", v)),
            st.binary(max_size=5).map(lambda v: ("bytes_value", v)),
        ),
        max_size=4,
    )
)
def test_should_hold_every_value_as_it_is(values: list[tuple[str, Any]]) -> None:
    attributes = [{"key": f"k{at}", "value": {kind: value}} for at, (kind, value) in enumerate(values)]
    found, bad = rows("logs", logs({"string_value": "x"}, attributes=attributes))
    assert bad == {}
    for (kind, value), got in zip(values, found[0][1]["attributes"], strict=True):
        held = got["value"].pop(kind)
        assert held == value or (math.isnan(held) and math.isnan(value))
        assert set(got["value"].values()) == {None}


@EXAMPLES
@given(st.integers(0, 2**32))
def test_should_give_each_damaged_entry_rows_or_an_error(seed: int) -> None:
    chance = random.Random(seed)
    entries = []
    for _ in range(4):
        data = bytearray(chance.choice([logs({"string_value": "x"}), metrics(), traces()]))
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(2)] = bytes(
            chance.choices([0, 1, 0x0A, 0x12, 0x80, 0xFF], k=chance.randrange(3))
        )
        entries.append(bytes(data))
    for signal in ("logs", "metrics"):
        found, bad = rows(signal, *entries)
        assert not {entry for entry, _ in found} & bad.keys()
        for index, entry in enumerate(entries):
            alone, error = rows(signal, entry)
            assert repr([row for _, row in alone]) == repr([row for at, row in found if at == index])
            assert error.get(0) == bad.get(index)


def test_should_take_memory_by_the_bytes_in_hand() -> None:
    record = {"log_records": [{} for _ in range(100_000)]}
    big = {"attributes": [{"key": "k", "value": {"string_value": "x" * 100_000}}]}
    many = Logs(resource_logs=[{"scope_logs": [record]}]).SerializeToString()
    copies = Logs(
        resource_logs=[
            {"resource": big, "scope_logs": [{"log_records": [{"severity_text": "a" * 20} for _ in range(9000)]}]}
        ]
    ).SerializeToString()
    for entry in (many, copies):
        got: list[Any] = []
        peak = peak_bytes(lambda entry=entry, got=got: got.append(parse(OtlpFormat("logs"), entry)))
        assert "too much room" in got[0].bad[0][1]
        assert peak < 100 * len(entry)


def test_should_pickle_and_name_wrong_options() -> None:
    form = OtlpFormat("logs")
    assert pickle.loads(pickle.dumps(form)) == form == resolve_format({"type": "otlp", "signal": "logs"})
    assert form.digest() != OtlpFormat("traces").digest()
    for given_options, says in (
        ({}, "signal='' is not allowed"),
        ({"signal": "profiles"}, "'logs', 'metrics' or 'traces'"),
        ({"signal": "logs", "rescued_data": "body"}, "a name that no other column has"),
    ):
        with pytest.raises(InvalidConfig, match=says):
            OtlpFormat(**given_options)
