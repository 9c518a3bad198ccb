"""Every path and batch name, made and parsed here and nowhere else. Pure; called by whoever names an object.

    {folder}/manifest                          the queue; its folder is where the batches lie unless told otherwise
    {manifest_path}.ledger                     beside it
    {prefix}/{ULID}.batch                      a batch of ours
    {prefix}/{run ULID}/{ordinal, 16 hex}      a batch of OpenData's Go producer
    {folder}/dead_letters/{name}.dead          an unreadable batch that was kept whole

- A batch's ULID is its identity and, by its maker's wall clock, its age. Upper case only: one ULID, one spelling.
- The run's ULID of a foreign batch is a lower bound of its age: a run lasts for days.
- A kept batch has neither the folder nor the name of a batch, so no collector takes it for one.
- What the local store names inside its root (locks, temporary files) are files, not objects: `store/files.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from ulid import base32

from buffer.errors import InvalidInput

_ULID: Final = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
_BATCH: Final = re.compile(rf"({_ULID})\.batch")
_FOREIGN: Final = re.compile(rf"(?:.*/)?({_ULID})/([0-9a-f]{{16}})", re.DOTALL)
_ULID_TIME_CHARS: Final = 10

SHOWN_CHARS_MAX: Final = 300  # of a location, in a message; a manifest may hold one of 64 KiB
DECODED_TIMES_MAX: Final = 3  # each time over costs a pass, and a hostile name could ask for thousands

_DEAD: Final = ".dead"
_LEDGER: Final = ".ledger"

DEAD_LETTERS_FOLDER: Final = "dead_letters"
"""Beside the batches: whole objects that no row could hold. Nothing deletes them."""


class ForeignBatch(NamedTuple):
    """What the name of a Go producer's batch says."""

    run_ulid: str
    """Made when the producer started, not when it wrote this."""
    ordinal: int


def folder_of(location: str) -> str:
    """The folder that an object lies in; empty at the top. A queue's batches lie in its manifest's by default."""
    return location.rpartition("/")[0]


def ledger_path(manifest_path: str) -> str:
    return f"{manifest_path}{_LEDGER}"


def manifest_path_of(ledger_path: str) -> str:
    """The manifest that a ledger lies beside."""
    return ledger_path.removesuffix(_LEDGER)


def batch_location(prefix: str, ulid: str) -> str:
    return f"{prefix}/{ulid}.batch"


def batch_ulid(location: str) -> str | None:
    """The ULID in a location's file name, in whatever folder; None if the name is not `{ULID}.batch`."""
    match = _BATCH.fullmatch(location.rpartition("/")[2])
    return match[1] if match else None


def foreign_batch(location: str) -> ForeignBatch | None:
    """The run and the ordinal of a Go producer's batch; None if the location does not end in both."""
    match = _FOREIGN.fullmatch(location)
    return ForeignBatch(match[1], int(match[2], 16)) if match else None


def foreign_location(prefix: str, batch: ForeignBatch) -> str:
    return f"{prefix}/{batch.run_ulid}/{batch.ordinal:016x}"


def ulid_time_ms(ulid: str) -> int:
    """When the ULID was made, by its maker's wall clock."""
    return int.from_bytes(base32.decode_timestamp(ulid[:_ULID_TIME_CHARS]), "big")


def dead_letter_location(location: str) -> str:
    """Where the whole object of an unreadable batch is kept."""
    folder, slash, name = location.rpartition("/")
    return f"{folder}{slash}{DEAD_LETTERS_FOLDER}/{name}{_DEAD}"


def _shown(location: str) -> str:
    """For a message: whole, as far as somebody would have written it."""
    text = repr(location[:SHOWN_CHARS_MAX])
    return text if len(location) <= SHOWN_CHARS_MAX else f"{text}… of {len(location):,} characters"


def check_location(location: str) -> None:
    """Refuse what some store would silently change, or could not keep: InvalidInput says what is wrong.

    A location is one or more segments with `/` between them. No segment is empty, `.` or `..`, and none holds
    a control character: HTTP stores normalize or reject those, and folders would lead outside the root.
    """
    if not isinstance(location, str) or not location:
        raise InvalidInput(f"the location {location!r} is not allowed: it must be a non-empty str")
    for segment in location.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidInput(
                f"the location {_shown(location)} is not allowed: it has a segment {segment!r}; "
                "write it like 'ingest/a', with no '/' at either end, no '//', no '.' and no '..'"
            )
    if any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in location):
        raise InvalidInput(
            f"the location {_shown(location)} is not allowed: it holds a control character or a lone surrogate"
        )


def location_problem(location: str, prefixes: Sequence[str] = ()) -> str | None:
    """Why a location that stands in a manifest is not to be read; None if it may be. Without prefixes, any folder is
    the queue's.

    Below its prefix a location must mean the same to everybody: what would be another path once somebody decoded
    `%2F` or took `\\` for `/` is refused too.
    """
    try:
        check_location(location)
    except InvalidInput as error:
        return str(error)
    if not prefixes:
        return None
    inside = next((location.removeprefix(f"{p}/") for p in prefixes if location.startswith(f"{p}/")), None)
    if inside is None:
        return (
            f"the location {_shown(location)} lies outside of {', '.join(map(repr, prefixes))}, where this queue's "
            "batches are; if older ones are elsewhere, name their folder in former_prefixes"
        )
    decoded = inside
    for _ in range(DECODED_TIMES_MAX):
        decoded = unquote(decoded, errors="replace")
    if unquote(decoded, errors="replace") != decoded:
        return f"the location {_shown(location)} is percent-encoded more than {DECODED_TIMES_MAX} times over"
    plain = "\\" not in decoded and decoded.count("/") == inside.count("/")
    try:
        check_location(decoded)
    except InvalidInput:
        plain = False
    return None if plain else f"the location {_shown(location)} is another path to whoever decodes it"


def dead_letters_folder(prefix: str) -> str:
    """Where the whole objects of a prefix's unreadable batches are kept."""
    return f"{prefix}/{DEAD_LETTERS_FOLDER}"


def dead_letter_source(location: str) -> str | None:
    """The batch that was kept as `location`; None if that is no name of such an object."""
    folder, _, name = location.rpartition("/")
    outer, slash, inner = folder.rpartition("/")
    if inner != DEAD_LETTERS_FOLDER or not name.endswith(_DEAD):
        return None
    return f"{outer}{slash}{name.removesuffix(_DEAD)}"
