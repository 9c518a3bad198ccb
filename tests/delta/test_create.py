"""Where a table is tried that is not there yet."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from buffer_delta.delta.create import TablePlan, scratch_folder

BUCKETS = ["s3a://bucket", "s3a://bucket/", "gs://bucket//", "abfss://box@account.dfs.core.windows.net/", "file:/", "/"]
FOLDERS = ["s3a://bucket/t", "s3a://bucket/t/", "file:/t", "file:///a/t", "/t", "./t", "dbfs:/t", "/a/ t#?"]


@pytest.mark.parametrize("place", [*BUCKETS, *FOLDERS])
def test_should_not_try_a_table_in_the_bucket_of_somebody_else(place: str) -> None:
    """A longer name of a bucket is that of another one: nothing could be tried there, and the search for what fails
    every time would never come to an end."""
    spark: Any = MagicMock()  # only for the removal
    with scratch_folder(spark, MagicMock(), TablePlan(None, place)) as folder:
        pass
    if place in BUCKETS:
        assert folder is None
        assert not spark.mock_calls
    else:
        assert folder is not None
        assert folder.startswith(f"{place.rstrip('/')}.trial-")
