"""Sizes of batches: what is listed, what is asked for alone, and what is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from buffer.errors import StorageError
from buffer.model import BatchDescriptor
from buffer.store.open import open_store
from buffer_delta.decode.sizes import BatchSizes
from tests.consume.consumer_support import Tapped

PREFIX = "ingest"


def ulid(number: int) -> str:
    return f"01J{number:023d}"


def batch(number: int, folder: str = PREFIX) -> BatchDescriptor:
    return BatchDescriptor(number, f"{folder}/{ulid(number)}.batch", ())


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Tapped:
    made = Tapped(open_store("memory://" if request.param == "memory" else str(tmp_path)))
    made.put(f"{PREFIX}/manifest", b"not a batch")
    return made


def put(store: Tapped, *descriptors: BatchDescriptor) -> list[BatchDescriptor]:
    """Batches whose size is their sequence."""
    for descriptor in descriptors:
        store.store.put(descriptor.location, b"x" * descriptor.sequence)
    store.calls.clear()
    return list(descriptors)


def sizes_of(descriptors: list[BatchDescriptor]) -> dict[str, int]:
    return {descriptor.location: descriptor.sequence for descriptor in descriptors}


def test_should_list_only_from_the_oldest_unknown_batch_on(store: Tapped) -> None:
    old = put(store, *map(batch, range(1, 6)))
    new = put(store, *map(batch, range(6, 9)))
    seen: list[str] = []
    listing = store.store.list

    def spy(prefix: str, *, after: str | None = None) -> object:
        for info in listing(prefix, after=after):
            seen.append(info.location)
            yield info

    store.store.list = spy  # type: ignore[method-assign]
    sizes = BatchSizes(store, PREFIX)
    assert sizes.look_up(new) == sizes_of(new)
    assert not {d.location for d in old} & set(seen)
    assert store.calls == [("list", PREFIX)]


def test_should_list_nothing_while_every_size_is_known(store: Tapped) -> None:
    batches = put(store, *map(batch, range(1, 9)))
    sizes = BatchSizes(store, PREFIX)
    sizes.look_up(batches[:1])
    assert store.calls == [("list", PREFIX)]
    assert sizes.look_up(batches) == sizes_of(batches), "the first listing has found those behind it"
    assert len(store.calls) == 1


def test_should_find_a_batch_that_is_older_than_those_it_has_seen(store: Tapped) -> None:
    """Producers upload first and append later: the manifest's order is not the names' order."""
    sizes = BatchSizes(store, PREFIX)
    late, early = put(store, batch(7), batch(3))
    assert sizes.look_up([late]) == sizes_of([late])
    assert sizes.look_up([late, early]) == sizes_of([late, early])
    assert [operation for operation, _ in store.calls] == ["list", "list"]


def test_should_ask_alone_for_batches_with_other_names(store: Tapped) -> None:
    foreign = [
        BatchDescriptor(1, f"{PREFIX}/by-hand.batch", ()),
        BatchDescriptor(2, f"elsewhere/{ulid(2)}.batch", ()),
        BatchDescriptor(3, f"{PREFIX}/deeper/{ulid(3)}.batch", ()),
    ]
    put(store, *foreign)
    sizes = BatchSizes(store, PREFIX)
    for _ in range(2):
        assert sizes.look_up(foreign) == sizes_of(foreign)
    assert sorted(store.calls) == sorted(("head", d.location) for d in foreign)


def test_should_count_a_batch_that_is_gone_as_empty_and_ask_once(store: Tapped) -> None:
    sizes = BatchSizes(store, PREFIX)
    gone = batch(5)
    for _ in range(2):
        assert sizes.look_up([gone]) == {gone.location: 0}
    assert store.calls[-2:] == [("list", PREFIX), ("head", gone.location)]


def test_should_forget_what_left_the_queue(store: Tapped) -> None:
    batches = put(store, *map(batch, range(1, 5)))
    sizes = BatchSizes(store, PREFIX)
    sizes.look_up(batches)
    sizes.forget(batches[:3])
    assert len(sizes) == 1
    sizes.forget(batches)
    assert len(sizes) == 0


def test_should_keep_a_bounded_number_of_sizes(store: Tapped) -> None:
    batches = put(store, *map(batch, range(1, 41)))
    sizes = BatchSizes(store, PREFIX, kept_max=10)
    for start in range(0, 40, 4):
        wanted = batches[start : start + 4]
        assert sizes.look_up(wanted) == sizes_of(wanted)
        assert len(sizes) <= 10 + 4
        # Nothing is forgotten here: orphans in the folder are kept no longer than there is room.


def test_should_know_nothing_wrong_after_a_listing_failed(store: Tapped) -> None:
    batches = put(store, *map(batch, range(1, 4)))
    sizes = BatchSizes(store, PREFIX)

    def fail(operation: str, _location: str) -> None:
        if operation == "list":
            raise StorageError("no answer")

    store.tap = fail
    with pytest.raises(StorageError):
        sizes.look_up(batches)
    store.tap = None
    assert sizes.look_up(batches) == sizes_of(batches)
