"""What commands print, for people and for programs. The one way out: nothing else writes to stdout or stderr.

Much of what is printed comes from outside: locations, ledgers, records, what a server said. So every character that
does not simply show (control characters, among them ESC and the C1 set, marks that turn the direction of text,
line and paragraph separators, lone surrogates) is shown escaped: it must not drive a terminal, forge a line, or make
a text look like another one. In JSON the escapes are JSON's own, so that a program reads the very value.

The same goes for characters that the stream's encoding lacks, as in a Latin-1 locale.

The one exception is `buffer tail` into a pipe, which passes records on as they are.
"""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 240
"""Columns of a table that goes into a pipe or a file: nothing is cut there."""

_WRITE_CHARS = 1 << 16

T = TypeVar("T")


# Characters


def printable(text: str) -> str:
    """The text on one line, with everything escaped that does not simply show."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The same, with the lines of a message joined: it may have several without being hostile."""
    return printable(" ".join(line.strip() for line in text.strip().splitlines()))


def printable_json(text: str) -> str:
    """JSON with the same characters escaped, inside its strings; where it has line breaks between them, they stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


_ESCAPED = "buffer.cli.escaped"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "only what is printed is escaped"
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPED, _escaped)


def escape_what_does_not_fit() -> None:
    """From now on a character that stdout or stderr cannot encode is printed as JSON escapes it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_ESCAPED)


# Printing


def echo(text: str = "", *, err: bool = False) -> None:
    """One line."""
    click.echo(printable(text), err=err)


def verdict(mark: str, colour: str, text: str) -> None:
    """A line that begins with a word of ours, in colour on a terminal."""
    click.echo(f"{click.style(mark, fg=colour, bold=True)}  {printable(text)}")


def print_json(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> None:
    """A document and a newline, written as it is made: `Lazy` lists are never there as a whole."""
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(indent=indent, ensure_ascii=False, default=default).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size >= _WRITE_CHARS:
            sys.stdout.write(printable_json("".join(pieces)))
            pieces, size = [], 0
    sys.stdout.write(printable_json("".join(pieces)) + "\n")
    sys.stdout.flush()


class Lazy(list[Any]):
    """A list for `print_json` whose items are made one by one, as they are printed."""

    def __init__(self, length: int, items: Callable[[], Iterator[Any]]) -> None:
        super().__init__()
        self._length = length
        self._items = items

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._items()


def print_facts(facts: Mapping[str, object], title: str = "") -> None:
    """Names and values, one a line. Values that are None are left out."""
    if title:
        click.secho(title, bold=True)
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{click.style(name.ljust(width), bold=True)}  {printable(str(value))}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    console = out_console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def cell(value: object) -> Text:
    """For rich, which would take brackets in a location for markup."""
    return Text(printable(str(value)))


def is_terminal(stream: IO[Any]) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # replaced or closed
        return False


def out_console() -> Console:
    return Console(highlight=False, width=None if is_terminal(sys.stdout) else PIPED_WIDTH)


def track(items: Iterable[T], *, total: int, label: str) -> Iterator[T]:
    """The items, with a progress bar on stderr while they are worked on. Quiet unless stderr is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _bars(*columns) as progress:
        yield from progress.track(items, total=total, description=label)


@contextmanager
def counting(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar on stderr for the block, a step (or so many) further at each call of what it gives. For terminals only."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _bars(*columns) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count=1: progress.advance(task, count)


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is going on and for how long, for work that cannot be counted beforehand."""
    with _bars(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        task = progress.add_task(label, total=None)
        yield lambda text: progress.update(task, description=text)


def _bars(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not is_terminal(sys.stderr))
