"""Is everything that a queue refers to there, and does it decode? Reads, claims nothing, changes nothing.

A batch may be acked and collected while we look. So what seems missing at first counts only if the queue, read
once more at the end, still refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Literal

from buffer.consume.budget import Budget
from buffer.consume.fetch import FetchHandle
from buffer.errors import CorruptBatch, LocationRefused, ObjectNotFound, StorageError
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor

HELD_BYTES_MAX = 256 << 20
"""Of decoded batches, by all threads together; one larger batch is looked at alone."""

Problem = Literal["missing", "corrupt", "refused", "unreadable"]


@dataclass(frozen=True, slots=True)
class Checked:
    """One batch that was read and decoded, or the reason why it was not."""

    sequence: int
    location: str
    entries: int = 0
    bytes: int = 0
    """Of the decoded entries, as Arrow holds them."""
    problem: Problem | None = None
    error: str = ""


def check_batch(handle: FetchHandle, descriptor: BatchDescriptor, budget: Budget) -> Checked:
    """Fetch and decode one batch. Whatever is wrong with it is in the result; nothing is raised for it."""
    try:
        return _check(handle, descriptor, budget)
    finally:
        budget.release(descriptor.sequence)


def _check(handle: FetchHandle, descriptor: BatchDescriptor, budget: Budget) -> Checked:
    place = (descriptor.sequence, descriptor.location)
    try:
        array = handle.fetch_within(descriptor, partial(budget.reserve, descriptor.sequence)).array
    except ObjectNotFound as error:
        return Checked(*place, problem="missing", error=str(error))
    except LocationRefused as error:
        return Checked(*place, problem="refused", error=str(error))
    except CorruptBatch as error:
        return Checked(*place, problem="corrupt", error=str(error))
    except StorageError as error:
        return Checked(*place, problem="unreadable", error=str(error))
    beyond = next((item for item in descriptor.metadata if item.start_index > len(array)), None)
    if beyond is not None:
        what = f"its metadata speaks of entry {beyond.start_index}, but it has {len(array)}"
        return Checked(*place, len(array), array.nbytes, "corrupt", what)
    return Checked(*place, len(array), array.nbytes)


def check_batches(handle: FetchHandle, descriptors: Iterable[BatchDescriptor], jobs: int = 4) -> Iterator[Checked]:
    """Check them all, `jobs` at a time, as results come in. Closing the iterator cancels the rest, without waiting."""
    pending: set[Future[Checked]] = set()
    budget = Budget(HELD_BYTES_MAX)
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="buffer-verify")
    try:
        for descriptor in descriptors:
            pending.add(pool.submit(check_batch, handle, descriptor, budget))
            if len(pending) >= 2 * jobs:  # enough to keep every thread busy, and no more in memory
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        done, pending = wait(pending)
        yield from (future.result() for future in done)
    finally:
        budget.close()
        pool.shutdown(wait=False, cancel_futures=True)


def damaged(checked: Iterable[Checked], newest: Manifest) -> Sequence[Checked]:
    """Those with a problem that the queue still refers to, in queue order."""
    kept = [item for item in checked if item.problem is not None and item.sequence >= newest.first_sequence]
    return sorted(kept, key=lambda item: item.sequence)
