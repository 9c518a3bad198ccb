"""Rows that a table would refuse, found before they are written: one expression over all of them.

    refused = broken_rule(rows, ("_sequence", "_index"), seen.rules, seen.schema, location)

Delta checks the same while it writes, but fails the whole write for one row and does not say which. What is not known
here (a failing expression, rules that a newer Delta has) still fails there, and the loader searches for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from buffer_delta.delta.columns import quoted, widened
from buffer_delta.delta.guard import other_value
from buffer_delta.delta.rules import TableRules
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.struct_json import is_filled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

FILE_NAME_BYTES_MAX = 255  # of one folder's name, on Linux and HDFS
OBJECT_NAME_BYTES_MAX = 700  # … in an object store: the whole name has 1,024
_OBJECT_STORES = ("s3:", "s3a:", "s3n:", "gs:")
_ESCAPED = r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]"
"""What Hive writes as `%XX` in the name of a partition's folder."""
_PHYSICAL_NAME_BYTES = 40  # with column mapping the folder has a name of Delta's own


def with_missing(rows: DataFrame, names: Sequence[str], table: StructType | None) -> DataFrame:
    """The rows with these columns, null where they had none: of the table's type, or text if that has none either."""
    missing = {
        field.name: f.lit(None).cast(field.dataType) for field in missing_columns(rows.schema, names, table).fields
    }
    return rows.withColumns(missing) if missing else rows


def missing_columns(rows: StructType, names: Sequence[str], table: StructType | None) -> StructType:
    """Those of the names that are no columns of the rows: of the table's type, or text if that has none either.

    Not those that Delta fills by itself where rows lack them."""
    there = {same_name_key(field.name) for field in rows.fields}
    there |= {same_name_key(field.name) for field in table.fields if is_filled(field.metadata)} if table else set()
    kinds: dict[str, DataType] = {same_name_key(field.name): field.dataType for field in table.fields} if table else {}
    wanted: dict[str, str] = {}
    for name in names:
        wanted.setdefault(same_name_key(name), name)
    return StructType(
        [StructField(name, kinds.get(key, StringType())) for key, name in wanted.items() if key not in there]
    )


def broken_rule(
    rows: DataFrame, keys: tuple[str, str], rules: TableRules, table: StructType | None, location: str
) -> DataFrame | None:
    """`sequence, index, reason` of the rows that the table would refuse; the first two from the columns named `keys`.

    None: it has no rules that could be broken.
    """
    names = [*(table.names if table else ()), *rules.partition_by]
    whole = with_missing(widened(rows, table) if table else rows, names, table)
    there = {same_name_key(name) for name in whole.columns}
    cases = [
        *(_null(whole, path, rules) for path in rules.not_null if same_name_key(path[0]) in there),
        *(case for name, text in rules.checks if (case := _check(whole, name, text)) is not None),
        *(
            case
            for name in rules.partition_by
            if same_name_key(name) in there
            for case in _no_folder(whole, name, location)
        ),
    ]
    if not cases:
        return None
    sequence, index = (f.col(quoted(key)).cast("long") for key in keys)
    reason = f.coalesce(*cases)
    return whole.select(sequence.alias("sequence"), index.alias("index"), reason.alias("reason")).where(
        "reason IS NOT NULL"
    )


def _null(rows: DataFrame, path: tuple[str, ...], rules: TableRules) -> Column:
    column = f.col(".".join(map(quoted, path)))
    is_null = column.isNull()  # a field of a struct that is null itself, too: Delta sees no difference
    if path[0] in rules.partition_by and rows.select(column).schema[0].dataType == StringType():
        is_null = is_null | (column == "")  # Delta makes an empty partition value null
    return f.when(is_null, f.lit(f"null in the column {'.'.join(path)}, which is NOT NULL"))


def _check(rows: DataFrame, name: str, text: str) -> Column | None:
    holds = f.coalesce(f.expr(text), f.lit(False))
    try:
        rows.select(holds)
    except AnalysisException:  # Delta will say what is wrong with it, or fills a column that it is about
        return None
    return f.when(~holds, f.lit(f"breaks the CHECK constraint {name} ({text})"))


def _no_folder(rows: DataFrame, name: str, location: str) -> list[Column]:
    other = other_value(rows, name)
    column = f.col(quoted(name))
    if other is None or rows.select(column).schema[0].dataType != StringType():
        return [] if other is None else [other]
    limit = OBJECT_NAME_BYTES_MAX if location.startswith(_OBJECT_STORES) else FILE_NAME_BYTES_MAX
    room = limit - 1 - max(_PHYSICAL_NAME_BYTES, 3 * len(name.encode()))
    escapes = f.length(column) - f.length(f.regexp_replace(column, _ESCAPED, ""))
    length = f.octet_length(column) + 2 * escapes
    what = f"the value for the partition column {name} cannot be the name of a folder"
    return [
        other,
        f.when(f.instr(column, "\0") > 0, f.lit(f"{what}: it has a NUL character")),
        f.when(length > room, f.concat(f.lit(f"{what}: it has "), length.cast("string"), f.lit(" bytes"))),
    ]
