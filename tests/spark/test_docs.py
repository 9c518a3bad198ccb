"""The documents' Python, SQL and commands that need Spark, run in our session, with folders for buckets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer.cli import cli as core
from buffer.cli.shell import CORE_EXIT_CODES
from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.cli import cli
from buffer_delta.cli.app import EXIT_CODES
from tests.cli.cli_support import InProcess
from tests.documents import DOCUMENTS, Block, blocks, needs_spark, python_of, with_folders, words_of

DOCUMENTS_WITH_SPARK = [path for path in DOCUMENTS if python_of(path, spark=True)]
CONSOLE_WITH_SPARK = [block for block in blocks("console") if any(map(needs_spark, block.commands()))]


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


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_should_show_sql_that_runs(spark: SparkSession, block: Block, tmp_path: Path, place: Commands) -> None:
    place.fill(b'{"id": 1}', b'{"id": 2}')
    place.run("buffer-delta load --store ./queue --table ./events --format json --available-now")
    spark.read.format("delta").load(str(tmp_path / "events")).createOrReplaceTempView("events")
    with Producer(ProducerConfig(store=str(tmp_path / "buffer"))) as producer:
        producer.produce([b"a"])
    try:
        for statement in filter(None, (text.strip() for text in block.text.split(";"))):
            rows = spark.sql(with_folders(statement, tmp_path)).collect()
            if "no rows, ever" in statement:
                assert rows == []
            elif "FROM waiting" in statement:
                assert rows[0][0] == 1
    finally:
        spark.catalog.dropTempView("events")
        spark.catalog.dropTempView("waiting")


class Commands:
    """Commands as they are printed, in this process, in a folder of their own."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._programs = {
            "buffer": InProcess(capfd, core, "buffer", CORE_EXIT_CODES),
            "buffer-delta": InProcess(capfd, cli, "buffer-delta", EXIT_CODES),
        }

    def fill(self, *entries: bytes) -> None:
        with Producer(ProducerConfig(store=str(self.folder / "queue"))) as producer:
            producer.produce(list(entries))

    def run(self, command: str) -> str:
        (name, *words) = words_of(with_folders(command, self.folder))[-1]
        words = [str(self.folder / word) if word == "buffer.toml" else word for word in words]
        if words[0] == "load" and "--available-now" not in words:
            words += ["--available-now"]  # the document's runs until SIGTERM
        ran = self._programs[name](*[word.replace("127.0.0.1:9464", "127.0.0.1:0") for word in words])
        assert ran.code == 0, ran.err
        return ran.out


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, capfd)


@pytest.mark.parametrize("block", CONSOLE_WITH_SPARK, ids=str)
def test_should_run_commands_as_they_are_printed(block: Block, place: Commands, spark: SparkSession) -> None:
    commands = [command for command in block.commands() if needs_spark(command) or "buffer status" in command]
    if block.document == "README.md":
        place.fill(b'{"id": 1}', b'{"id": 2}')
    elif block.document == "operations.md":
        with Producer(ProducerConfig(store=str(place.folder / "buffer"))) as producer:
            producer.produce([b"a"])
    else:
        _with_dead_letters(place, spark)
    for command in commands:
        said = place.run(command)
        if "dead-letters list" in command:
            assert said.splitlines()[0].split() == block.output()[0].split()
            assert [line.split()[0] for line in said.splitlines()[1:]] == ["2"]
            assert "null in the column id, which is NOT NULL" in said
    if block.document == "README.md":
        assert spark.read.format("delta").load(str(place.folder / "events")).count() == 2
    if any("redrive" in command for command in commands):
        letters = spark.read.format("delta").load(str(place.folder / "events_dead"))
        assert letters.where("redrive IS NOT NULL").count() == 2


def _with_dead_letters(place: Commands, spark: SparkSession) -> None:
    """Two records without an id, in a table that must have one, as the page on dead letters tells."""
    table, queue, dead = (place.folder / name for name in ("events", "queue", "events_dead"))
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT NOT NULL, _sequence BIGINT, _index INT, _ingested_at TIMESTAMP, "
        "_entry_metadata BINARY, _rescued_data STRING) USING delta"
    )
    (place.folder / "buffer.toml").write_text(
        f'[loader]\nstore = "{queue}"\ntable = "{table}"\ndead_letters = "{dead}"\ngc_enabled = false\n'
        'format = { type = "json", schema = "id BIGINT" }\n'
    )
    place.fill(b'{"id": 1}', b"{}", b"{}")
    place.run("buffer-delta load --config buffer.toml --available-now")


def test_should_cover_the_commands_of_the_readme() -> None:
    (use,) = (block for block in CONSOLE_WITH_SPARK if block.document == "README.md" and "printf" in block.text)
    assert [re.split(r"[ |]+", command)[0] for command in use.commands()] == ["printf", "buffer", *["buffer-delta"] * 2]
