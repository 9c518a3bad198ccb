"""How the data files of a Delta table are written, and what became of one: values that executors get and return."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.delta.partitions import unsupported
from buffer_delta.delta.stats import StatsRules
from buffer_delta.formats.struct_json import UnknownType, arrow_type

MIB = 1024 * 1024
TARGET_FILE_BYTES = 128 * MIB

CODECS = {
    "none": "NONE",
    "uncompressed": "NONE",
    "snappy": "SNAPPY",
    "gzip": "GZIP",
    "zstd": "ZSTD",
    "brotli": "BROTLI",
    "lz4": "LZ4",
    "lz4_raw": "LZ4",
}
"""Spark's names of codecs, and Arrow's."""
CODEC_SUFFIXES = {"NONE": "", "SNAPPY": ".snappy", "GZIP": ".gz", "ZSTD": ".zstd", "BROTLI": ".br", "LZ4": ".lz4raw"}
_SIZE_UNITS = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": MIB, "mb": MIB, "g": 1024 * MIB, "gb": 1024 * MIB}


@dataclass(frozen=True, slots=True)
class FileRules:
    """How a table's data files are written: a value, which travels to the executors."""

    schema: pa.Schema
    """Every column of the table in its order, those it is partitioned by too, typed as Arrow types Spark's."""
    partition_by: tuple[str, ...] = ()
    not_null: tuple[tuple[str, ...], ...] = ()
    """Columns that take no null, each as its path through structs. A null struct is a null in all that is in it."""
    codec: str = "snappy"
    target_file_bytes: int = TARGET_FILE_BYTES
    stats: StatsRules = field(default_factory=StatsRules)

    def __post_init__(self) -> None:
        missing = [name for name in self.partition_by if self.schema.get_field_index(name) < 0]
        odd = [name for name in self.partition_by if name not in missing and unsupported(self.schema.field(name).type)]
        if missing or odd:
            raise InvalidConfig(
                f"the table cannot be partitioned by {', '.join(missing or odd)}: "
                + ("it has no such column" if missing else "a column of that type has no text in Delta's log"),
                key="partition_by",
                value=list(self.partition_by),
            )
        if self.codec not in CODECS:
            raise InvalidConfig(
                f"codec={self.codec!r} is not known: it must be one of {', '.join(CODECS)}",
                key="codec",
                value=self.codec,
            )
        if self.target_file_bytes < 1:
            raise InvalidConfig(
                f"target_file_bytes={self.target_file_bytes} is not allowed: it must be at least 1",
                key="target_file_bytes",
                value=self.target_file_bytes,
            )

    @classmethod
    def of_metadata(cls, text: str, *, codec: str = "snappy", deletion_vectors: bool = False) -> FileRules:
        """From the `metaData` action of a table's log, as JSON.

        `codec` is for tables that name none. `deletion_vectors`: whether the table's protocol has that feature. Raises
        InvalidConfig, saying why, where the table has a type or a property that Arrow cannot write.
        """
        found = json.loads(text)["metaData"]
        properties: Mapping[str, str] = found.get("configuration") or {}
        struct = json.loads(found["schemaString"])
        try:
            kind = arrow_type(struct)
        except UnknownType as error:
            raise InvalidConfig(
                f"the table has a column of type {error}, which has no like in Arrow", key="schema", value=str(error)
            ) from None
        return cls(
            schema=pa.schema(list(kind)),
            partition_by=tuple(found.get("partitionColumns") or ()),
            not_null=tuple(_not_null(kind)),
            codec=properties.get("delta.parquet.compression.codec", codec).lower(),
            target_file_bytes=_size(properties.get("delta.targetFileSize", str(TARGET_FILE_BYTES))),
            stats=StatsRules.of_properties(properties, deletion_vectors=deletion_vectors),
        )

    @property
    def file_schema(self) -> pa.Schema:
        """The columns that are in a file."""
        return pa.schema([f for f in nullable_schema(self.schema) if f.name not in self.partition_by])


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is written, as an `add` action names it."""

    path: str
    """Relative to the table's folder, percent-encoded."""
    size: int
    rows: int
    partition_values: dict[str, str | None]
    stats: str
    """JSON."""
    modification_time_ms: int

    def to_add(self) -> dict[str, Any]:
        """The `add` action's fields."""
        return {
            "path": self.path,
            "partitionValues": self.partition_values,
            "size": self.size,
            "modificationTime": self.modification_time_ms,
            "dataChange": True,
            "stats": self.stats,
        }


@lru_cache(maxsize=8)
def nullable_schema(given: pa.Schema) -> pa.Schema:
    """The columns as they are in a file."""
    return pa.schema([_nullable(each) for each in given])


def _nullable(given: pa.Field) -> pa.Field:
    return pa.field(given.name, _nullable_type(given.type))


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable_type(kind.value_type)))
    if pa.types.is_map(kind):
        key = pa.field("key", _nullable_type(kind.key_type), nullable=False)
        return pa.map_(key, pa.field("value", _nullable_type(kind.item_type)))
    return kind


def _not_null(kind: pa.StructType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Delta does not look inside of arrays and maps."""
    for each in kind:
        if not each.nullable:
            yield (*path, each.name)
        if pa.types.is_struct(each.type):
            yield from _not_null(each.type, (*path, each.name))


def _size(text: str) -> int:
    """A size as Spark reads one: bytes, or with a unit like `100mb`."""
    number = text.strip().rstrip("bBkKmMgG")
    unit = text.strip()[len(number) :].lower()
    if not number.isascii() or not number.isdigit() or unit not in _SIZE_UNITS:
        raise InvalidConfig(
            f"delta.targetFileSize={text!r} is not a size: write it like 134217728 or 128mb",
            key="delta.targetFileSize",
            value=text,
        )
    return max(1, int(number) * _SIZE_UNITS[unit])
