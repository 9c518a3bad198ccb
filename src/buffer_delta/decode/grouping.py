"""How much goes into one commit, and how it is spread over tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buffer.model import BatchDescriptor

MIN_TASK_BYTES = 8 << 20
"""Below this a second task costs more than it saves, and leaves a small file behind."""


def choose_count(
    descriptors: Sequence[BatchDescriptor], sizes: Mapping[str, int], max_bytes: int, max_batches: int
) -> int:
    """How many of the first descriptors fit into one commit: at least one, however large."""
    total = 0
    for count, descriptor in enumerate(descriptors[:max_batches]):
        total += sizes.get(descriptor.location, 0)
        if total > max_bytes and count:
            return count
    return min(len(descriptors), max_batches)


def group(
    descriptors: Sequence[BatchDescriptor], sizes: Mapping[str, int], target_bytes: int, cores: int
) -> list[list[BatchDescriptor]]:
    """Contiguous groups of about equal size, one for each task.

    Each task writes at least one file, so there are only as many as make files of `target_bytes`; or as there
    are cores to keep busy, while every task still has `MIN_TASK_BYTES` to do.
    """
    if not descriptors:
        return []
    weights = [max(1, sizes.get(d.location, 0)) for d in descriptors]
    total = sum(weights)
    tasks = max(-(-total // target_bytes), min(cores, total // MIN_TASK_BYTES), 1)
    tasks = min(tasks, len(descriptors))
    groups: list[list[BatchDescriptor]] = [[] for _ in range(tasks)]
    before = 0
    for descriptor, weight in zip(descriptors, weights, strict=True):
        # By the middle of each batch on the scale of all bytes: order is kept, shares come out even.
        groups[min(tasks - 1, (2 * before + weight) * tasks // (2 * total))].append(descriptor)
        before += weight
    return [g for g in groups if g]
