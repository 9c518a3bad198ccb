"""Which tables Arrow may write, by what their logs say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from buffer_delta.delta.arrow_fit import why_not, why_not_made


def asked(
    *,
    features: list[str] | None = None,
    properties: dict[str, str] | None = None,
    type_: Any = "long",
    metadata: dict[str, Any] | None = None,
) -> str | None:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features is not None:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": features}  # type: ignore[dict-item]
    column = {"name": "a", "type": type_, "nullable": True, "metadata": metadata or {}}
    schema = json.dumps({"type": "struct", "fields": [column]})
    described = {"id": "x", "schemaString": schema, "partitionColumns": [], "configuration": properties or {}}
    return why_not(json.dumps({"protocol": protocol}), json.dumps({"metaData": described}))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"features": ["appendOnly", "invariants", "deletionVectors", "rowTracking", "domainMetadata", "clustering"]},
        {"features": ["inCommitTimestamp", "changeDataFeed", "checkConstraints", "v2Checkpoint", "timestampNtz"]},
        {"features": ["inCommitTimestamp-preview"]},
        {"properties": {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "none", "team": "me"}},
        {"properties": {"delta.parquet.compression.codec": "zstd", "delta.targetFileSize": "1mb"}},
        {"type_": "decimal(38,18)"},
        {"type_": {"type": "array", "elementType": {"type": "map", "keyType": "string", "valueType": "date"}}},
        {"metadata": {"comment": "the first column"}},
    ],
)
def test_should_let_arrow_write_what_it_does_right(facts: dict[str, Any]) -> None:
    assert asked(**facts) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"properties": {"delta.constraints.positive": "a > 0"}}, r"CHECK constraints \(positive\)"),
        ({"properties": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"properties": {"delta.enableTypeWidening": "TRUE"}}, "type widening"),
        ({"properties": {"delta.enableIcebergCompatV2": "true"}}, "Iceberg"),
        ({"properties": {"delta.autoOptimize.optimizeWrite": "true"}}, "optimized writes"),
        ({"metadata": {"delta.generationExpression": "1"}}, "generated column"),
        ({"metadata": {"delta.identity.start": 1}}, "identity column"),
        ({"metadata": {"CURRENT_DEFAULT": "7"}}, "default"),
        ({"metadata": {"delta.invariants": "{}"}}, "invariant"),
        ({"metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}, "VARCHAR"),
        ({"type_": "variant"}, "the type variant"),
        ({"type_": "void"}, "the type void"),
        ({"type_": "string collate UNICODE"}, "the type string collate UNICODE"),
        (
            {
                "type_": {
                    "type": "array",
                    "elementType": {
                        "type": "struct",
                        "fields": [{"name": "b", "type": "interval second", "metadata": {}}],
                    },
                }
            },
            "the type interval second",
        ),
        ({"features": ["catalogManaged"]}, "the table feature catalogManaged"),
        ({"features": ["invariants", "somethingNew"]}, "the table feature somethingNew"),
    ],
)
def test_should_leave_to_spark_what_it_does_not_do(facts: dict[str, Any], reason: str) -> None:
    found = asked(**facts)
    assert found is not None
    assert re.search(reason, found)


def test_should_judge_a_table_that_is_to_be_made_by_its_properties() -> None:
    assert why_not_made({}) is None
    assert why_not_made({"delta.feature.rowTracking": "supported", "delta.enableRowTracking": "true"}) is None
    assert why_not_made({"delta.feature.variantType": "supported"}) == "the table feature variantType"
    assert why_not_made({"delta.columnMapping.mode": "id"}) == "column mapping"
