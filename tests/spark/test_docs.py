"""The documents' Python that needs Spark, run in our session, with folders for buckets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.test_docs import DOCUMENTS, python_of, with_folders

DOCUMENTS_WITH_SPARK = [path for path in DOCUMENTS if python_of(path, spark=True)]


@pytest.mark.parametrize("path", DOCUMENTS_WITH_SPARK, ids=lambda path: path.name)
def test_should_show_python_that_runs_on_spark(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    if path.name != "data-source.md":  # that one produces itself
        with Producer(ProducerConfig(store=str(tmp_path / "buffer"))) as producer:
            producer.produce([b'{"id": 1, "name": "a"}', b'{"id": 2}', b"bad"])
    for code in python_of(path, spark=True):
        # Until SIGTERM, says the document; here until all is loaded.
        code = with_folders(code, tmp_path).replace(".run()", ".run(available_now=True)")
        exec(compile(code, path.name, "exec"), {"spark": spark})
    events = spark.read.format("delta").load(str(tmp_path / "events"))
    assert events.count() == (1000 if path.name == "data-source.md" else 2)
