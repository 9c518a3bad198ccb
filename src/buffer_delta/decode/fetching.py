"""The batches of a group, the next ones fetched while one is decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from buffer.consume.fetch import FetchHandle
from buffer.model import BatchDescriptor
from buffer_delta.decode.group import Group as Group
from buffer_delta.decode.group import in_groups as in_groups

FETCH_AHEAD = 2  # batches held besides the one that is decoded


def fetched(handle: FetchHandle, group: Group) -> Iterator[tuple[BatchDescriptor, pa.Array | None]]:
    """Each batch of the group with its entries, None for a quarantined one; in order."""

    def fetch(descriptor: BatchDescriptor) -> pa.Array | None:
        return None if descriptor.sequence in group.quarantined else handle.fetch_arrow(descriptor)

    with ThreadPoolExecutor(FETCH_AHEAD) as pool:
        ahead: deque[tuple[BatchDescriptor, Future[pa.Array | None]]] = deque()
        for descriptor in group.descriptors:
            ahead.append((descriptor, pool.submit(fetch, descriptor)))
            if len(ahead) > FETCH_AHEAD:
                first, entries = ahead.popleft()
                yield first, entries.result()
        while ahead:
            first, entries = ahead.popleft()
            yield first, entries.result()
