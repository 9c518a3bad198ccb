"""One table under two names is one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from buffer.errors import InvalidConfig
from buffer_delta.delta.places import one_spelling
from buffer_delta.load import checks


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/lake/t", "s3a://bucket/lake/t"),
        ("s3n://bucket/lake/t", "S3A://bucket//lake/t/"),
        ("abfs://c@account.dfs.core.windows.net/t", "abfss://c@account.dfs.core.windows.net/t"),
        ("file:/a/b", "file:///a/b/"),
        ("file:/a/b", "file:/a/c/../b"),
    ],
)
def test_should_find_two_spellings_of_one_place(one: str, other: str) -> None:
    assert one_spelling(one) == one_spelling(other)
    with pytest.raises(InvalidConfig, match="the same table"):
        checks.different_tables({"x": one_spelling(one), "y": one_spelling(other)})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/lake/t", "s3://bucket/lake/T"),
        ("s3://bucket/t", "gs://bucket/t"),
        ("file:/a/b", "file:/a/bb"),
        ("spark_catalog.default.a", "spark_catalog.default.b"),
        ("s3://bucket/t?x", "s3://bucket/t?y"),
    ],
)
def test_should_keep_different_places_apart(one: str, other: str) -> None:
    assert one_spelling(one) != one_spelling(other)


def test_should_follow_links(tmp_path: Path) -> None:
    (tmp_path / "real ü").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real ü")
    (tmp_path / "folders").symlink_to(tmp_path)
    expected = one_spelling(f"file:{tmp_path}/real ü/t")
    assert one_spelling(f"file:{tmp_path}/link/t") == expected
    assert one_spelling(f"file://{tmp_path}/folders/link/t") == expected
    assert one_spelling((tmp_path / "real ü").as_uri()) == one_spelling(f"file:{tmp_path}/link")
