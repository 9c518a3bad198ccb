"""The format `avro`: each entry one record, in Avro's binary encoding, of a schema that is given.

    AvroFormat(avro_schema='{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}')
    AvroFormat(avro_schema={"17": {…}, "18": {…}}, framing="confluent")        # by the number in each entry
    AvroFormat(avro_schema=[{…}, {…}], framing="soe")                           # by the fingerprint in each entry

An entry is read with the schema that it was written with, and with no other: no schema is asked for over the network,
and an entry whose schema was not given is bad. The columns are the fields of the record, or of all records together
(see `leaves` for the types); with `schema` they are those, and a value goes in only if the column holds it exactly
(see `fit`). A column that an entry's schema does not have is null there.

What is not Avro of that schema to the last byte is bad (see `read`), and so is a value that its column cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.avro.cursor import Cursor, Report
from buffer_delta.formats.avro.names import (
    CONFLUENT_MAGIC,
    FRAMINGS,
    SCHEMA_ID_MAX,
    SOE_MAGIC,
    canonical,
    fingerprint,
    loaded,
    wrong,
)
from buffer_delta.formats.avro.read import RecordNode, read_all
from buffer_delta.formats.avro.types import record_node
from buffer_delta.formats.base import Format, Parsed, brief
from buffer_delta.formats.cells import all_allowed_cells
from buffer_delta.formats.entries import Indices, as_binary, offsets_of
from buffer_delta.formats.fit import Fit
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.schemas import arrow_schema, schema_text


@dataclass(frozen=True, kw_only=True)
class AvroOptions(FormatOptions):
    avro_schema: Any = None
    """The schema that entries were written with, as JSON text or its values; then a table from what entries name it by
    to schemas. With `framing = "confluent"` a table from numbers to schemas, with `"soe"` one schema or several."""
    framing: str = "none"
    """What stands before each record: `none`; `confluent`, a zero and the schema's number; `soe`, Avro's own
    single-object encoding with the schema's fingerprint."""
    schema: Any = None
    """DDL, StructType or Arrow schema of the columns, and then an Arrow schema. None: as the records have them."""
    unknown_fields: str = "refuse"
    """Of the record, that `schema` has no column for: `refuse` such a configuration, or `ignore` them."""

    def __post_init__(self) -> None:
        self._check_choice("framing", FRAMINGS)
        self._check_choice("unknown_fields", ("refuse", "ignore"))
        if self.avro_schema is None:
            raise InvalidConfig(
                "the format 'avro' needs avro_schema, the schema that entries were written with: in a file, "
                "format = {type = \"avro\", avro_schema = '…'}",
                key="avro_schema",
            )
        object.__setattr__(self, "avro_schema", self._keyed(loaded(self.avro_schema)))
        if self.schema is not None:
            object.__setattr__(self, "schema", arrow_schema(self.schema))

    def _keyed(self, given: Any) -> dict[int, Any]:
        """The schemas by what entries name them by; 0 where they name nothing."""
        if self.framing == "none":
            return {0: given}
        if self.framing == "soe":
            several = given if isinstance(given, list) else [given]
            for one in several:
                record_node(one)  # a fingerprint is for what passes its checks
            return {fingerprint(one): one for one in several}
        if not isinstance(given, Mapping) or "fields" in given or not given:
            raise wrong("with framing='confluent' it is a table from the schemas' numbers to schemas: {'17': {…}}")
        return {_number(key): loaded(one) for key, one in given.items()}


def _number(key: Any) -> int:
    text = str(key)
    if not (text.isascii() and text.isdecimal()) or int(text) > SCHEMA_ID_MAX:
        raise reject("avro_schema", key, "the number of a schema in the registry")
    return int(text)


class AvroFormat(Format):
    name: ClassVar[str] = "avro"
    Options: ClassVar[type[FormatOptions]] = AvroOptions
    options: AvroOptions

    def __init__(self, avro_schema: Any = None, **options: Any) -> None:
        super().__init__(avro_schema=avro_schema, **options)
        self._nodes = {key: record_node(schema) for key, schema in self.options.avro_schema.items()}
        kinds = [node.kind for node in self._nodes.values()]
        self._fit = Fit(kinds, self.options.schema, ignore=self.options.unknown_fields == "ignore")

    @property
    def schema(self) -> pa.Schema:
        return self._fit.schema

    def settings(self) -> dict[str, Any]:
        given = self.options.schema
        return {
            "framing": self.options.framing,
            "schemas": {str(key): _text(schema) for key, schema in self.options.avro_schema.items()},
            "schema": None if given is None else schema_text(given),
            "unknown_fields": self.options.unknown_fields,
        }

    def parse(self, entries: pa.Array) -> Parsed:
        entries = as_binary(entries)
        offsets = offsets_of(entries).astype(np.int64)
        values = entries.buffers()[2] if len(entries) else None
        data = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
        report = Report(all_allowed_cells(np.diff(offsets)))
        cursor = Cursor(data, offsets[:-1].copy(), offsets[1:].copy(), np.arange(len(entries)), report)
        tables, sources = [], []
        for node, rows in self._by_schema(cursor):
            inside = cursor.rows(rows)
            found = read_all(inside, node)
            good = np.array([entry not in report.errors for entry in rows.tolist()], bool)
            table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(found)])
            if not good.all():
                table, rows = table.filter(pa.array(good)), rows[good]
            fitted, rows, misfits = self._fit.fitted(table, rows)
            report.errors.update(misfits)
            tables.append(fitted)
            sources.append(rows)
        bad = sorted((entry, brief(error)) for entry, error in report.errors.items())
        if not bad and len(tables) == 1:
            return Parsed(tables[0], None)
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        at = np.concatenate(sources or [np.zeros(0, np.int64)])
        order = np.argsort(at, kind="stable")
        return Parsed(rows.take(pa.array(order)) if len(tables) > 1 else rows, at[order], bad)

    def _by_schema(self, cursor: Cursor) -> Iterator[tuple[RecordNode, Indices]]:
        """The rows of each schema; the places move on to where the records begin."""
        if self.options.framing == "none":
            yield self._nodes[0], np.arange(len(cursor))
            return
        names = self._names(cursor)
        good = np.array([entry not in cursor.report.errors for entry in range(len(cursor))], bool)
        for name in np.unique(names[good]).tolist():
            rows = np.flatnonzero((names == name) & good)
            if name in self._nodes:
                yield self._nodes[name], rows
            else:
                shown = name if self.options.framing == "confluent" else f"{name:016x}"
                cursor.fail(rows, f"it was written with the schema {shown}, which is not among those in avro_schema")

    def _names(self, cursor: Cursor) -> Any:
        """What each entry names its schema by, read from its frame."""
        if self.options.framing == "confluent":
            frame = cursor.fixed(5)
            cursor.fail_where(frame[:, 0] != CONFLUENT_MAGIC, "it does not begin with a zero and a schema's number")
            return np.ascontiguousarray(frame[:, 1:]).view(">u4")[:, 0].astype(np.uint64)
        frame = cursor.fixed(10)
        marked = (frame[:, 0] == SOE_MAGIC[0]) & (frame[:, 1] == SOE_MAGIC[1])
        cursor.fail_where(~marked, "it does not begin as Avro's single-object encoding does")
        return np.ascontiguousarray(frame[:, 2:]).view("<u8")[:, 0]


def _text(schema: Any) -> str:
    """Stable, and with the logical types, which the canonical form leaves out."""
    return canonical(schema) + json.dumps(schema, sort_keys=True)
