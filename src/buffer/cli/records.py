"""Streams of bytes into records, a chunk at a time. Memory is bounded by the chunk and the longest record.

    lines             each line is a record, without its newline; a last line needs none
    length-prefixed   `length u32 little-endian | bytes`, repeated: any bytes may be a record

`read_*` yield lists of records: each list is what one chunk completed. `calls` cuts them to what a batch may hold; then
each is one produce call. Whoever wants to stop the reading says so by `stopped`; it is asked before every read, so
nothing that was read is lost.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterable, Iterator

from buffer.errors import InvalidInput
from buffer.produce.intake import ENTRY_OVERHEAD_BYTES

CHUNK_BYTES = 4 << 20
LINGER_S = 0.005
"""How long to wait for more from a pipe before going on with what is there: few calls, little delay."""
WAIT_MAX_S = 0.2
"""How long to wait for a pipe before asking again whether to stop."""

_LENGTH_BYTES = 4

Records = Iterator[list[bytes]]
Reader = Callable[[Iterable[bytes], int], Records]


class Stopped(Exception):
    """The reading was told to stop. What was read and is no whole record yet is dropped."""


def _never() -> bool:
    return False


def read_chunks(descriptor: int, limit: int = CHUNK_BYTES, stopped: Callable[[], bool] = _never) -> Iterator[bytes]:
    """The bytes of an open file until its end, in chunks of at most `limit`. Raises Stopped.

    From a pipe or a terminal, a chunk is what is there now: whoever writes slowly is not kept waiting.
    """
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if stopped():
            raise Stopped
        if not is_file and not select.select([descriptor], [], [], WAIT_MAX_S)[0]:
            continue
        chunk = os.read(descriptor, limit)
        if not chunk:
            if stopped():  # meanwhile: then the end of the input completes no record
                raise Stopped
            return
        if is_file or len(chunk) == limit:
            yield chunk
            continue
        parts, size = [chunk], len(chunk)
        while size < limit and select.select([descriptor], [], [], LINGER_S)[0]:
            chunk = os.read(descriptor, limit - size)
            if not chunk:
                break  # the end; the outer read meets it again
            parts.append(chunk)
            size += len(chunk)
        yield b"".join(parts)


def read_lines(chunks: Iterable[bytes], max_record_bytes: int, *, growing: bool = False) -> Records:
    """Raises InvalidInput at a line that no batch could hold. While the input is `growing` a line needs its end."""
    begun: list[bytes] = []  # the parts of a line that goes on in the next chunk
    begun_bytes = 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n")
        if cut >= 0:
            begun.append(chunk[:cut])
            yield b"".join(begun).split(b"\n")
            begun, begun_bytes = [], 0
            chunk = chunk[cut + 1 :]
        if chunk:
            begun.append(chunk)
            begun_bytes += len(chunk)
        if begun_bytes > max_record_bytes:
            raise InvalidInput(
                f"a line has more than {max_record_bytes:,} bytes, and max_batch_bytes allows no larger record; "
                "is the input text? Binary records need --length-prefixed"
            )
    if begun and not growing:
        yield [b"".join(begun)]


def read_length_prefixed(chunks: Iterable[bytes], max_record_bytes: int, *, growing: bool = False) -> Records:
    """Raises InvalidInput at a length that no batch could hold, and, unless the input is `growing`, at an end in the
    middle of a record."""
    begun: list[bytes] = []
    begun_bytes, needed = 0, _LENGTH_BYTES
    for chunk in chunks:
        begun.append(chunk)
        begun_bytes += len(chunk)
        if begun_bytes < needed:  # joining parts of a long record again and again would cost their square
            continue
        data = b"".join(begun)
        records, at, needed = _split_prefixed(data, max_record_bytes)
        if records:
            yield records
        begun = [data[at:]] if at < len(data) else []
        begun_bytes = len(data) - at
    if begun_bytes and not growing:
        raise InvalidInput(
            f"the input ends in the middle of a record: {begun_bytes} bytes are there, {needed} are needed. What "
            "came before was produced"
        )


def _split_prefixed(data: bytes, max_record_bytes: int) -> tuple[list[bytes], int, int]:
    """The whole records, where the rest begins, and how many bytes the rest needs to be looked at again."""
    records: list[bytes] = []
    at, end = 0, len(data)
    while at + _LENGTH_BYTES <= end:
        stop = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        if stop > end:
            length = stop - at - _LENGTH_BYTES
            if length > max_record_bytes:
                raise InvalidInput(
                    f"a record claims {length:,} bytes, and max_batch_bytes allows {max_record_bytes:,}; is the "
                    "input length-prefixed (u32, little-endian)?"
                )
            return records, at, stop - at
        records.append(data[at + _LENGTH_BYTES : stop])
        at = stop
    return records, at, _LENGTH_BYTES


def calls(found: Iterable[list[bytes]], max_batch_bytes: int) -> Records:
    """The same records in lists that one batch can hold. Raises InvalidInput at a record that none can.

    In a batch a short line takes several times its bytes, and a long one comes with what stood behind it in its chunk.
    """
    for records in found:
        if sum(map(len, records)) + ENTRY_OVERHEAD_BYTES * len(records) <= max_batch_bytes:
            yield records
            continue
        call: list[bytes] = []
        room = max_batch_bytes
        for record in records:
            size = len(record) + ENTRY_OVERHEAD_BYTES
            if size > room:
                if call:
                    yield call
                call, room = [], max_batch_bytes
            if size > room:
                raise InvalidInput(
                    f"a record of {len(record):,} bytes takes {size:,} in a batch, and max_batch_bytes is "
                    f"{max_batch_bytes:,}: raise that, for producers and readers alike"
                )
            call.append(record)
            room -= size
        yield call
