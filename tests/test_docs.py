"""What the documents show must be there: code that runs, settings that are accepted, commands and files that exist."""

from __future__ import annotations

import os
import re
import shlex
import signal
import tomllib
from pathlib import Path

import click
import pytest

from buffer.cli.app import cli as core_cli
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.cli.app import cli as delta_cli
from buffer_delta.config import LoaderConfig

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
README_LINES_MAX = 150

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(*languages: str) -> list[pytest.param]:
    """Every block of code, named by its document and line."""
    return [
        pytest.param(match[2], id=f"{path.name}:{text[: match.start()].count(chr(10)) + 1}")
        for path in DOCUMENTS
        for text in [path.read_text()]
        for match in _BLOCK.finditer(text)
        if match[1] in languages
    ]


def python_of(path: Path, *, spark: bool = False) -> list[str]:
    """The document's blocks of Python that need Spark, or those that do not."""
    found = [match[2] for match in _BLOCK.finditer(path.read_text()) if match[1] == "python"]
    return [code for code in found if ("spark" in code) == spark]


def with_folders(code: str, folder: Path) -> str:
    return re.sub(r"s3a?://my-(bucket|lake)/", f"{folder}/", code)


def test_should_be_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_should_link_only_to_what_is_there(path: Path) -> None:
    links = [link for link in _LINK.findall(path.read_text()) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_should_be_found_from_the_readme() -> None:
    linked = {(ROOT / link).resolve() for link in _LINK.findall((ROOT / "README.md").read_text())}
    assert [path.name for path in DOCUMENTS if path.name != "README.md" and path.resolve() not in linked] == []


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if python_of(path)], ids=lambda path: path.name)
def test_should_show_python_that_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block after block, as a reader would, with folders for buckets. Those for Spark: `tests/spark/test_docs.py`."""
    monkeypatch.chdir(tmp_path)  # where `./old` and its kin may lie
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


@pytest.mark.parametrize("text", blocks("toml"))
def test_should_show_settings_that_are_accepted(text: str) -> None:
    tables = {"producer": ProducerConfig, "consumer": ConsumerConfig, "loader": LoaderConfig}
    found = tomllib.loads(text)
    assert found
    for name, settings in found.items():
        assert tables[name].from_dict(settings)


@pytest.mark.parametrize("text", blocks("console"))
def test_should_show_commands_that_there_are(text: str) -> None:
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)", text, re.MULTILINE):
        for words in _commands(command.replace("\\\n", " ")):
            _check(words)


def _commands(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


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
