"""What the documents show must be there: code that runs, settings that are accepted, commands and files that exist.

What needs Spark is run in `tests/spark/test_docs.py`; see `test_should_run_every_command`.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from buffer.cli.app import cli as core_cli
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.ledger.plan import Ledger, Plan
from buffer.legacy import Ingestor, KeyValueEntry
from buffer.names import ledger_path
from buffer.produce.producer import Producer
from buffer_delta.cli.app import cli as delta_cli
from buffer_delta.config import LoaderConfig
from tests.documents import (
    DOCUMENTS,
    LANGUAGES,
    ROOT,
    Block,
    blocks,
    needs_spark,
    outside_of_blocks,
    python_of,
    with_folders,
    words_of,
)
from tests.nets import HANGS_S

README_LINES_MAX = 150
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_PROGRAMS = re.compile(r"\s{4,}\$? ?(buffer|buffer-delta|make|pip|python|spark-submit) ")

ELSEWHERE = {
    # What is neither run here nor with Spark, and the test that does it.
    "spark-submit --packages": "tests/spark/test_spark_examples.py::test_should_load_with_spark_submit",
    "buffer migrate s3://my-bucket/old s3://my-bucket/new --follow": (
        "tests/cli/test_cli_older.py::test_should_follow_writers_until_it_is_interrupted"
    ),
    "make demo": "tests/spark/test_demo.py",
    ".venv/bin/python -m pytest tests/spark": "tests/spark/conftest.py",
}


def shown(*languages: str) -> list[pytest.param]:
    return [pytest.param(block, id=str(block)) for block in blocks(*languages)]


def test_should_be_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_should_link_only_to_what_is_there(path: Path) -> None:
    links = [link for link in _LINK.findall(path.read_text()) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_should_be_found_from_the_readme() -> None:
    linked = {(ROOT / link).resolve() for link in _LINK.findall((ROOT / "README.md").read_text())}
    assert [path.name for path in DOCUMENTS if path.name != "README.md" and path.resolve() not in linked] == []


@pytest.mark.parametrize("name", ["guide", "operations", "configuration", "formats", "exactly-once", "scale"])
def test_should_have_the_pages_that_people_look_for(name: str) -> None:
    assert (ROOT / "docs" / f"{name}.md") in DOCUMENTS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_should_name_tests_and_files_that_are_there(path: Path) -> None:
    named = re.findall(r"`((?:tests|benchmarks|src|ops|scripts|examples)/[\w/.-]+?)/?`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
    modules = re.findall(r"python -m ((?:tests|benchmarks)[\w.]*)", path.read_text())
    assert [name for name in modules if not _is_module(name)] == []


def _is_module(name: str) -> bool:
    place = ROOT / name.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__main__.py").exists()


def test_should_name_modules_that_are_there() -> None:
    rows = [line.split("|")[1] for line in (ROOT / "docs/contributing.md").read_text().splitlines() if "| `b" in line]
    named = [name for row in rows for name in re.findall(r"`(buffer[\w.]*)`", row)]
    assert len(named) > 25
    for name in named:
        importlib.import_module(name)


# Blocks of code


def test_should_say_of_every_block_what_it_is() -> None:
    assert [str(block) for block in blocks() if block.language not in LANGUAGES] == []
    typed = [f"{path.name}: {line}" for path in DOCUMENTS for line in outside_of_blocks(path) if _PROGRAMS.match(line)]
    assert typed == [], "a command in an indented block is found by no test: put it into a console block"
    assert [str(block) for block in blocks("text") if re.search(r"^(\$|buffer)", block.text, re.MULTILINE)] == []
    assert [str(block) for block in blocks("console") if not block.commands()] == []


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if python_of(path)], ids=lambda path: path.name)
def test_should_show_python_that_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block after block, as a reader would, with folders for buckets. Those for Spark: `tests/spark/test_docs.py`."""
    monkeypatch.chdir(tmp_path)  # where `./old` and the like may lie
    before = signal.getsignal(signal.SIGTERM)
    for name in ("jobs", "work"):
        manifest = "jobs/manifest" if path.name == "leases.md" and name == "jobs" else "ingest/manifest"
        with Producer(ProducerConfig(store=str(tmp_path / name), manifest_path=manifest)) as producer:
            producer.produce([b"an entry"])
    handled: list[bytes] = []

    def handle(entry: bytes) -> None:
        handled.append(entry)
        os.kill(os.getpid(), signal.SIGTERM)  # what a worker waits for

    names: dict[str, object] = {"calls": [[b"a"], [b"b"]], "resize": handle, "show": handle}
    try:
        for code in python_of(path):
            exec(compile(with_folders(code, tmp_path), path.name, "exec"), names)
    finally:
        signal.signal(signal.SIGTERM, before)
    if "worker(" in path.read_text() and path.name != "README.md":
        assert handled == [b"an entry"]


@pytest.mark.parametrize("block", shown("toml"))
def test_should_show_settings_that_are_accepted(block: Block) -> None:
    tables = {"producer": ProducerConfig, "consumer": ConsumerConfig, "loader": LoaderConfig}
    found = tomllib.loads(block.text)
    assert found
    for name, settings in found.items():
        assert tables[name].from_dict(settings)


# Commands


@pytest.mark.parametrize("block", shown("console"))
def test_should_show_commands_that_there_are(block: Block) -> None:
    for command in block.commands():
        for words in words_of(command):
            _check(words)


@pytest.mark.parametrize("block", shown("cron"))
def test_should_show_lines_that_cron_takes(block: Block) -> None:
    for line in block.text.splitlines():
        *times, command = line.split(maxsplit=5)
        assert all(re.fullmatch(r"(\*|\d+)(/\d+)?", time) for time in times), line
        assert "|" not in command, "its exit code would be the last command's"
        words = [word for word in words_of(command)[0] if not word.startswith((">", "&"))]
        _check(words[words.index("buffer-delta") :])


def _check(words: list[str]) -> None:
    name, *rest = words
    if name == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in rest if "=" not in word} <= targets
    elif name in ("buffer", "buffer-delta"):
        _check_options({"buffer": core_cli, "buffer-delta": delta_cli}[name], rest)
    elif name.endswith(("spark-submit", "python")):
        files = [word for word in rest if word.endswith(".py")]
        assert [file for file in files if not (ROOT / file.partition("::")[0]).exists()] == []
    else:
        assert name in ("printf", "source", "pip", "cat", "docker", ".venv/bin/python", "kubectl", "curl"), name


def _check_options(command: click.Command, words: list[str]) -> None:
    """Down to the subcommand; then each option must be one of its own."""
    while isinstance(command, click.Group):
        word, *words = words
        assert word in command.commands, f"no command {word!r}"
        command = command.commands[word]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help"}
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == []


def is_run_here(command: str) -> bool:
    return re.match(r"(printf|buffer|buffer-delta serve|make|\.venv/bin/python -m pytest) ", command) is not None


def is_elsewhere(command: str) -> bool:
    return any(command.startswith(known) for known in ELSEWHERE)


def test_should_run_every_command() -> None:
    """Here, in `tests/spark/test_docs.py`, or by a test that is named."""
    left = [
        f"{block}: {command}"
        for block in blocks("console")
        for command in block.commands()
        if not (is_elsewhere(command) or needs_spark(command) or is_run_here(command))
    ]
    assert left == []
    assert [name for name in ELSEWHERE.values() if not (ROOT / name.partition("::")[0]).exists()] == []


def prepare(folder: Path) -> None:
    """What the documents take for granted: a queue, one that the demo has loaded, one of the older format."""
    for name in ("buffer", "demo-data/queue"):
        with Producer(ProducerConfig(store=str(folder / name))) as producer:
            producer.produce([b'{"id": 1}'])
    with Consumer.new(ConsumerConfig(store=str(folder / "demo-data/queue"), gc_enabled=False)) as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)
    ledger = Ledger(queue_id="01TEST", epoch=1, app_id="a", tables=("/t",), born=True, plan=Plan(-1, 0, 0))
    (folder / "demo-data/queue" / ledger_path("ingest/manifest")).write_bytes(ledger.to_bytes())
    with Ingestor.open(store=str(folder / "old")) as ingestor:
        ingestor.ingest([KeyValueEntry(b"key", b"value")]).await_durable()


def runs(block: Block) -> list[str]:
    """Those of its commands that are run here."""
    return [c for c in block.commands() if is_run_here(c) and not needs_spark(c) and not is_elsewhere(c)]


@pytest.mark.parametrize("block", [block for block in blocks("console") if runs(block)], ids=str)
def test_should_run_commands_as_they_are_printed(block: Block, tmp_path: Path) -> None:
    """In a shell, in a folder of its own; what the document shows of their output has the same first words."""
    prepare(tmp_path)
    for command in runs(block):
        said = _run(with_folders(command, tmp_path), tmp_path)
        if len(block.commands()) == 1:
            labels = [re.split(r"\s{2,}", line)[0] for line in block.output()]
            found = [re.split(r"\s{2,}", line)[0] for line in said.splitlines()]
            assert [label for label in labels if label not in found] == [], said


def _run(command: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    where = folder
    if command.startswith("make "):
        command, where = f"{command} -n", ROOT  # it would be the whole gate
    elif "-m pytest" in command:
        command, where = (
            command.replace(".venv/bin/python", sys.executable) + " --collect-only -q -p no:cacheprovider",
            ROOT,
        )
    elif "buffer-delta serve" in command:
        return _serve(command.replace(":9464", ":0"), environment, folder)
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _serve(command: str, environment: dict[str, str], folder: Path) -> str:
    """Until it says where; then Ctrl-C."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command} --serve 127.0.0.1:0"],
        cwd=folder,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        said = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert said.startswith("serving "), said
    return said


def test_should_show_what_the_demo_says() -> None:
    """The lines of the README's demo, in the words that the demo has for them; what is left out is marked."""
    (block,) = (block for block in blocks("console") if block.document == "README.md" and "kill -9, in" in block.text)
    source = "".join(path.read_text() for path in (ROOT / "src/buffer_delta/cli").glob("demo*.py"))
    said = [
        *(
            "begin to write",
            "two loaders start Spark",
            "the first loader is warm",
            "kill -9, in the middle of the commit",
        ),
        *("the second loader takes over", "the new loader saw that", "Every event is in the table exactly once."),
    ]
    assert [words for words in said if words not in source] == []
    assert [words for words in said if words not in block.text] == []
    assert block.text.count("\n…\n") == 3, "lines are left out before the counts, among them, and at the end"


def test_should_find_a_shell() -> None:
    assert shutil.which("bash"), "the commands of the documents are run by it"
