"""The documents: their blocks of code and their commands, for the tests that run them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
LANGUAGES = {"console", "cron", "python", "sql", "text", "toml"}
"""All that there are. `text` is for pictures and layouts alone: nothing in it can be run."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)", re.MULTILINE)
_SPARK = re.compile(r"buffer-delta (load|status|check|unblock|redrive|dead-letters|demo|prepare)\b")


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    def commands(self) -> list[str]:
        """What stands after the prompts, comments left out."""
        found = [command.replace("\\\n", " ") for command in _COMMAND.findall(self.text)]
        return [re.sub(r"\s+# .*$", "", command).strip() for command in found]

    def output(self) -> list[str]:
        return [line for line in _COMMAND.sub("", self.text).splitlines() if line.strip()]


def blocks(*languages: str) -> list[Block]:
    return [
        Block(path.name, text[: match.start()].count("\n") + 1, match[1], match[2])
        for path in DOCUMENTS
        for text in [path.read_text()]
        for match in _BLOCK.finditer(text)
        if not languages or match[1] in languages
    ]


def outside_of_blocks(path: Path) -> list[str]:
    return _BLOCK.sub("", path.read_text()).splitlines()


def needs_spark(command: str) -> bool:
    return _SPARK.search(command) is not None


def with_folders(code: str, folder: Path) -> str:
    """Folders for buckets, and for what lies in the folder where somebody types."""
    return re.sub(r"(?<![\w/.])\./", f"{folder}/", re.sub(r"s3a?://my-(bucket|lake)/", f"{folder}/", code))


def words_of(line: str) -> list[list[str]]:
    """The commands of a line, which may be a pipe or a list, each in its words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def python_of(path: Path, *, spark: bool = False) -> list[str]:
    """The document's blocks of Python that need Spark, or those that do not."""
    found = [block.text for block in blocks("python") if block.document == path.name]
    return [code for code in found if ("spark" in code) == spark]
