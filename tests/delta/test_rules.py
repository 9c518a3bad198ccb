"""What a table demands of its rows, as its metadata says it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buffer_delta.delta.rules import TableRules


def rules(properties: dict[str, str]) -> TableRules:
    columns = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    metadata: dict[str, Any] = {"id": "1", "schemaString": json.dumps(columns), "configuration": properties}
    return TableRules.of_metadata(json.dumps({"metaData": metadata}))


@pytest.mark.parametrize("prefix", ["delta.constraints.", "Delta.Constraints.", "DELTA.CONSTRAINTS."])
def test_should_know_a_check_in_whatever_case_its_property_is_written(prefix: str) -> None:
    """Delta checks it in any: unknown, it is found by the search alone, after the range has failed many times."""
    assert rules({f"{prefix}Small": "id < 9", "delta.appendOnly": "true"}).checks == (("Small", "id < 9"),)
