"""Where a redrive must be alone with the table, and who says so. Without Spark: nothing may be written before that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.errors import InvalidConfig
from buffer_delta.cli import cli
from buffer_delta.cli import dead_letters as commands
from buffer_delta.cli.app import EXIT_CODES
from buffer_delta.letters.table import DeltaLetters, LetterTable
from tests.cli.cli_support import InProcess

SHARED = "io.delta.storage.S3DynamoDBLogStore"
BLIND = [
    ("s3a://bucket/dead", {}),
    ("S3A://bucket/dead", {}),
    ("s3://bucket/dead", {}),
    ("s3n://bucket/dead", {"spark.delta.logStore.s3a.impl": SHARED}),
    ("s3a://bucket/dead", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}),
]
SAFE = [
    ("file:/tmp/dead", {}),
    ("spark_catalog.default.dead", {}),
    ("abfss://c@a.dfs.core.windows.net/dead", {}),
    ("gs://bucket/dead", {}),
    ("s3a://bucket/dead", {"spark.delta.logStore.s3a.impl": SHARED}),
    ("s3://bucket/dead", {"spark.delta.logStore.class": SHARED}),
]


class Allowed(Exception):
    """It got past the check, to the first thing that it does with the table."""


class FakeSpark:
    def __init__(self, settings: dict[str, str]) -> None:
        conf = SimpleNamespace(getAll=lambda: list(settings.items()))
        self.sparkContext = SimpleNamespace(getConf=lambda: conf)


@pytest.fixture
def table_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The dead letters are there, and any use of them is told."""

    def opened(location: str) -> None:
        def init(self: Any, _spark: Any, name: str) -> None:
            self.name, self.target = name, SimpleNamespace(location=lambda: location)

        def used(*_: Any) -> Any:
            raise Allowed

        monkeypatch.setattr(LetterTable, "__init__", init)
        monkeypatch.setattr(LetterTable, "frame", used)
        monkeypatch.setattr(DeltaLetters, "_add_column", used)

    return opened


def opened(settings: dict[str, str], **stopped: bool) -> DeltaLetters:
    spark: Any = FakeSpark(settings)
    return DeltaLetters(spark, "letters", None, SystemClock().now_ms, **stopped)


@pytest.mark.parametrize(("location", "settings"), BLIND)
def test_should_refuse_where_its_commits_could_replace_the_loaders(
    table_at: Callable[[str], None], location: str, settings: dict[str, str]
) -> None:
    table_at(location)
    with pytest.raises(
        InvalidConfig, match=rf"'letters' \({location}\).*Stop every loader.*--loaders-stopped"
    ) as raised:
        opened(settings)
    assert SHARED in str(raised.value)
    with pytest.raises(Allowed):
        opened(settings, loaders_stopped=True)


@pytest.mark.parametrize(("location", "settings"), SAFE)
def test_should_run_beside_a_loader_where_the_log_decides_who_was_first(
    table_at: Callable[[str], None], location: str, settings: dict[str, str]
) -> None:
    table_at(location)
    with pytest.raises(Allowed):
        opened(settings)


@pytest.mark.parametrize("name", [["redrive"], ["dead-letters", "redrive"]])
def test_should_say_the_way_out_on_the_command_line(
    name: list[str],
    table_at: Callable[[str], None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def running(*_: Any, **__: Any) -> Iterator[FakeSpark]:
        yield FakeSpark({})

    monkeypatch.setattr(commands, "running_spark", running)
    table_at("s3a://bucket/dead")
    program = InProcess(capfd, cli, "buffer-delta", EXIT_CODES)
    words = [*name, "--store", tmp_path, "--dead-letters", "s3a://bucket/dead"]
    refused = program(*words)
    assert refused.code == 2
    assert "--loaders-stopped" in refused.err
    assert "s3a://bucket/dead" in refused.err
    assert "Allowed" in program(*words, "--loaders-stopped").err
    assert "--loaders-stopped" in program(*name, "--help").out
