"""`buffer produce --client-id`: files whose records are in the queue once, however often the command is killed.

Every record of a file has its place in it as its number, so the client's mark is the place to go on at. Calls may be
cut anywhere: each one carries the numbers of all its records, and what is in the queue already is recognised.

- Killed at any moment: the next run asks the queue where it is.
- The append of a run that was killed may land a moment after the next run asked. That one gets a conflict, asks again
  and goes on behind it.
- A file that has grown goes on, if it grew by whole records: a last line without its end was one, and what is added to
  it later is never looked at. Nobody can tell by a number that the record was longer afterwards. With `--growing` it is
  none, for whoever writes the file may be in the middle of it: what is written through a buffer ends anywhere.
- One that has become shorter than what the queue has of it is refused. A last line without its end that an earlier run
  counted is not missing: one with `--growing` leaves it where it is.
- In a folder each file is a client of its own, by its path there: files that come later or are removed move nothing.
- A link to a file is read like a file, unless that file is there by itself: `current.log` beside the log that it leads
  to would be a second client with the same records. Links to folders are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from buffer.config import ProducerConfig
from buffer.errors import IdempotencyConflict, InvalidInput, ProducerStopped
from buffer.marks import client_id_bytes
from buffer.produce.client_seqs import is_overtaken
from buffer.produce.durability import WriteHandle
from buffer.produce.producer import Producer

RESUMES_MAX = 5  # in a row without progress; then somebody else uses the client id


@dataclass(frozen=True, slots=True)
class Source:
    """One file, and the client whose calls its records are."""

    path: Path
    client_id: str


def sources(path: Path, client_id: str) -> list[Source]:
    """The file itself, or the files of a folder and of those in it, by name. Hidden ones are left out.

    Raises OSError for a folder that cannot be read, and InvalidInput for a file whose path cannot be a client's name.
    """
    if not path.is_dir():
        return [Source(path, client_id)]
    files = [file for file in sorted(_files(path)) if file.is_file()]
    return [Source(file, _client_of(file, path, client_id)) for file in _each_once(files)]


def _files(path: Path) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile
            raise error  # its files would be left out in silence

    for folder, folders, names in os.walk(path, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _each_once(files: list[Path]) -> Iterator[Path]:
    taken = {file.resolve() for file in files if not file.is_symlink()}
    for file in files:
        if file.is_symlink():
            target = file.resolve()
            if target in taken:
                continue
            taken.add(target)
        yield file


def _client_of(file: Path, folder: Path, client_id: str) -> str:
    own = f"{client_id}/{file.relative_to(folder).as_posix()}"
    try:
        client_id_bytes(own)
    except InvalidInput as error:
        raise InvalidInput(
            f"{str(file)!r} cannot be told apart from other files by its path, rename it: {error}"
        ) from error
    return own


class Run(Protocol):
    """What the command does around the files."""

    def read(self, path: Path) -> Iterator[list[bytes]]:
        """The records of a file from its beginning, in pieces."""
        ...

    def left(self, path: Path) -> int:
        """How many records at the end of a file `read` leaves to a later run, which may count them."""
        ...

    def sent(self, handle: WriteHandle, first: int, end: int, records: list[bytes]) -> None:
        """A call was accepted, with the records from `first` up to `end` but for those left out."""
        ...

    def overtaken(self) -> None:
        """Nothing that was sent and is not durable counts: it is looked at and sent again."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether to stop reading: a call failed, or a signal came."""
        ...


def produce_source(source: Source, config: ProducerConfig, run: Run, metadata: bytes, *, skip_empty: bool) -> None:
    """Produce what the queue does not have of one file.

    Raises what a producer does, and InvalidInput for a file that is shorter than what the queue has of it.
    """
    stuck = 0
    place = -1
    while True:
        producer = Producer(config, client_id=source.client_id)
        begun = producer.next_client_seq
        stuck = stuck + 1 if begun == place else 0
        place = begun
        try:
            with producer:
                _produce_from(place, source, producer, run, metadata, skip_empty=skip_empty)
            return
        except (IdempotencyConflict, ProducerStopped) as error:
            if stuck == RESUMES_MAX or not is_overtaken(error):
                raise
            run.overtaken()


def _produce_from(
    place: int, source: Source, producer: Producer, run: Run, metadata: bytes, *, skip_empty: bool
) -> None:
    at = 0
    first = place
    """The first record that no call has told of yet: those left out count with the next call."""
    for records in run.read(source.path):
        rest = records[max(0, place - at) :]
        at += len(records)
        kept = [record for record in rest if record] if skip_empty else rest
        if not kept:
            continue
        run.sent(producer.produce(kept, metadata, range(first, at)), first, at, kept)
        first = at
        if run.is_over:
            return
    if at < place and not run.is_over and at + run.left(source.path) < place:
        raise InvalidInput(
            f"{str(source.path)!r} has {at:,} records, but the queue has {place:,} of client {source.client_id!r}: the "
            "file was cut or replaced. Use another --client-id for another file"
        )
