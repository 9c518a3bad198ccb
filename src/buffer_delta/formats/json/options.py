"""What can be said about the format `json`, and what of it goes together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.base import MAX_COLUMNS, RESCUED
from buffer_delta.formats.names import same_name_key, storable
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.schemas import arrow_schema


@dataclass(frozen=True, kw_only=True)
class JsonOptions(FormatOptions):
    schema: Any = None
    """DDL, StructType or Arrow schema, and then an Arrow schema. None: the columns follow the data."""
    rescued_data: str | None = RESCUED
    """Renames that column; None leaves it out, and then nothing may be rescued."""
    on_mismatch: str = "rescue"
    """`rescue`, or `dead_letter`: the record is bad."""
    unknown_fields: str = "rescue"
    """`rescue` or `ignore`."""
    schema_hints: Any = None
    """Types of some columns where the others follow the data: `"amount DECIMAL(18,2), tags ARRAY<STRING>"`. These
    are there from the start. What a table has already stays as it is."""
    max_columns: int = MAX_COLUMNS
    """What an evolving table may grow to: so many columns, and so many fields inside of them."""

    def __post_init__(self) -> None:
        if self.on_mismatch not in ("rescue", "dead_letter"):
            raise reject("on_mismatch", self.on_mismatch, "'rescue' or 'dead_letter'")
        if self.unknown_fields not in ("rescue", "ignore"):
            raise reject("unknown_fields", self.unknown_fields, "'rescue' or 'ignore'")
        if self.rescued_data is not None and not (isinstance(self.rescued_data, str) and self.rescued_data):
            raise reject("rescued_data", self.rescued_data, "the name of a column; None leaves it out")
        self._check_int("max_columns", 0)
        self._check_rescue()
        if self.schema is not None:
            object.__setattr__(self, "schema", arrow_schema(self.schema, variants=True))
        if self.schema_hints is not None:
            self._check_hints()

    def _check_hints(self) -> None:
        hints = arrow_schema(self.schema_hints, variants=True)
        if self.schema is not None:
            raise InvalidConfig(
                "schema_hints are for columns that follow the data: with a schema, put them into that",
                key="schema_hints",
                value=self.schema_hints,
            )
        for field in hints:
            if not field.nullable:
                raise reject("schema_hints", field.name, "without NOT NULL: a hint says a column's type")
            if same_name_key(field.name) == same_name_key(self.rescued_data or ""):
                raise reject("schema_hints", field.name, "other columns than the one that rescued fields go to")
            if not storable(field.name):
                raise reject("schema_hints", field.name, "a name that a Delta table can have")
        object.__setattr__(self, "schema_hints", hints)

    def _check_rescue(self) -> None:
        if self.rescued_data is None and "rescue" in (self.on_mismatch, self.unknown_fields):
            raise InvalidConfig(
                "rescued_data=None leaves no column to rescue into; set on_mismatch='dead_letter' and "
                "unknown_fields='ignore' too, or keep the column",
                key="rescued_data",
                value=None,
            )
        if self.schema is None and (self.on_mismatch, self.unknown_fields) != ("rescue", "rescue"):
            raise InvalidConfig(
                "without a schema the columns follow the data: what does not fit them yet must be rescued, so "
                "on_mismatch and unknown_fields must stay 'rescue'; or give a schema",
                key="on_mismatch" if self.on_mismatch != "rescue" else "unknown_fields",
                value=self.on_mismatch if self.on_mismatch != "rescue" else self.unknown_fields,
            )
