"""The formats without a parser of their own: `raw` and `text`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer_delta.formats.base import Format, Parsed
from buffer_delta.formats.entries import as_binary, invalid_utf8


class RawFormat(Format):
    """Payloads as they are, in the column `value` (binary). Nothing is ever bad."""

    name: ClassVar[str] = "raw"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary())])

    def parse(self, entries: pa.Array) -> Parsed:
        return Parsed(pa.Table.from_arrays([as_binary(entries)], schema=self.schema), None)

    def settings(self) -> dict[str, Any]:
        return {}


class TextFormat(Format):
    """Payloads as UTF-8 text, in the column `value` (string). Anything else is bad."""

    name: ClassVar[str] = "text"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.string())])

    def parse(self, entries: pa.Array) -> Parsed:
        entries = as_binary(entries)
        bad = invalid_utf8(entries)
        if not bad:
            return Parsed(pa.Table.from_arrays([entries.cast(pa.string())], schema=self.schema), None)
        good = np.setdiff1d(np.arange(len(entries)), [index for index, _ in bad])
        texts = entries.take(pa.array(good)).cast(pa.string())
        return Parsed(pa.Table.from_arrays([texts], schema=self.schema), good, bad)

    def settings(self) -> dict[str, Any]:
        return {}
