"""Numbers that a column cannot hold, in tables that can widen it, and in those that cannot."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import produce

pytestmark = pytest.mark.spark

LARGEST = 2**63 - 1


class Widening:
    """An evolving table, and what is in it."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self._spark = spark
        self._folder = folder
        self.table = f"delta.`{folder / 'table'}`"
        self._settings = {"format": "json", "gc_enabled": False} | settings

    def create(self, columns: str, *, widens: bool) -> None:
        self._spark.sql(
            f"CREATE TABLE {self.table} ({columns}) USING delta "
            f"TBLPROPERTIES ('delta.enableTypeWidening' = '{str(widens).lower()}')"
        )

    def load(self, *records: str, reached: Callable[[str], None] | None = None) -> None:
        produce(self._folder / "queue", [[record.encode() for record in records]])
        config = LoaderConfig(store=str(self._folder / "queue"), table=str(self._folder / "table"), **self._settings)
        Loader(self._spark, config, reached=reached).run(available_now=True)

    def types(self) -> dict[str, str]:
        return {f.name: f.dataType.simpleString() for f in self._spark.table(self.table).schema.fields}

    def rows(self) -> list[Row]:
        return self._spark.table(self.table).orderBy("_sequence", "_index").collect()


def test_should_widen_a_column_that_meets_a_fraction_where_the_table_allows_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = Widening(spark, tmp_path)
    found.create("n BIGINT, i INT, s STRUCT<n: BIGINT>, l ARRAY<BIGINT>, t STRING", widens=True)
    found.load(f'{{"n": {LARGEST}, "i": 7, "s": {{"n": 1}}, "l": [1], "t": "x"}}')
    assert found.types()["n"] == "bigint", "a whole number changes nothing"
    found.load(
        '{"n": 1.5, "i": 0.25, "s": {"n": 2.25}, "l": [3, 0.5]}',
        '{"n": 18446744073709551615}',
        '{"n": 1e-19, "i": 9007199254740993}',
    )
    wide = "decimal(38,18)"
    types = found.types()
    assert (types["n"], types["i"], types["s"], types["l"]) == (wide, "double", f"struct<n:{wide}>", f"array<{wide}>")
    old, fraction, beyond, tiny = found.rows()
    assert (old.n, old.i, old.s.n, old.l) == (Decimal(LARGEST), 7.0, Decimal(1), [Decimal(1)])
    assert (fraction.n, fraction.i, fraction.s.n) == (Decimal("1.5"), 0.25, Decimal("2.25"))
    assert fraction.l == [Decimal(3), Decimal("0.5")]
    assert beyond.n == Decimal(18446744073709551615)
    assert (tiny.n, tiny.i) == (None, None)
    assert tiny._rescued_data == '{"n":1e-19,"i":9007199254740993}', "what no wider type holds exactly is rescued"
    assert all(row._rescued_data is None for row in (old, fraction, beyond))
    found.load(f'{{"n": {LARGEST}}}')
    assert found.types()["n"] == wide
    assert found.rows()[-1].n == Decimal(LARGEST)


@pytest.mark.thorough
def test_should_rescue_where_delta_would_refuse_the_wider_type(spark: SparkSession, tmp_path: Path) -> None:
    """By the table's switch, by a CHECK that names the column, or because a route is computed from it."""
    off = Widening(spark, tmp_path / "off")
    off.create("n BIGINT", widens=False)
    checked = Widening(spark, tmp_path / "checked", dead_letters=str(tmp_path / "checked" / "dead"))
    checked.create("n BIGINT", widens=True)
    spark.sql(f"ALTER TABLE {checked.table} ADD CONSTRAINT small CHECK (n IS NULL OR n < 100)")
    routed = Widening(spark, tmp_path / "routed", route_by="n", routes={"5": str(tmp_path / "routed" / "five")})
    routed.create("n BIGINT", widens=True)
    for table in (off, checked, routed):
        table.load('{"n": 1.5}', '{"n": 7}')
        assert table.types()["n"] == "bigint"
        assert [(row.n, row._rescued_data) for row in table.rows()] == [(None, '{"n":1.5}'), (7, None)]
    assert not (tmp_path / "checked" / "dead").exists(), "nothing is wrong with the record"


@pytest.mark.parametrize(
    "form", [pytest.param("json", marks=pytest.mark.thorough), {"type": "json", "schema": "n BIGINT, i INT"}]
)
def test_should_finish_a_range_whose_table_was_altered_under_it(spark: SparkSession, tmp_path: Path, form: Any) -> None:
    """The rows are written when the column gets a wider type: the commit conflicts, and they are written once more."""
    found = Widening(spark, tmp_path, format=form, merge_schema=True)
    found.create("n BIGINT, i INT", widens=True)
    altered: list[str] = []

    def alter(step: str) -> None:
        if step == "staged" and not altered:
            altered.append(step)
            spark.sql(f"ALTER TABLE {found.table} ALTER COLUMN n TYPE DECIMAL(38, 18)")
            spark.sql(f"ALTER TABLE {found.table} ALTER COLUMN i TYPE DOUBLE")

    found.load(f'{{"n": {LARGEST}, "i": 7}}', reached=alter)
    assert [(row.n, row.i, row._rescued_data) for row in found.rows()] == [(Decimal(LARGEST), 7.0, None)]
