"""A manifest that was put back from a backup beside client marks of later sequences: nobody appends where they are."""

from __future__ import annotations

import pytest

from buffer.clients import ClientGuard, ClientLedger
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import IdempotencyConflict, InvalidInput, ManifestLost
from buffer.manifest import Manifest
from buffer.produce.producer import Producer
from buffer.store.base import Store
from tests.produce.producer_support import entries_of

MANIFEST = "ingest/manifest"


def producer(store: Store) -> Producer:
    return Producer(ProducerConfig(store=store), client_id="sensor")


def make(store: Store, calls: int) -> None:
    with producer(store) as client:
        for _ in range(calls):
            client.produce([b"call %d" % client.next_client_seq]).watcher.await_durable()


def manifest_of(store: Store) -> Manifest:
    return Manifest.from_bytes(store.get(MANIFEST).data)


def drain(store: Store) -> None:
    with Consumer.new(ConsumerConfig(store=store, gc_enabled=False)) as consumer:
        consumer.ack_through(consumer.next_descriptors(100)[-1].sequence)


def restored(store: Store) -> None:
    """Calls 0 to 4 were consumed; then the manifest of the first two was put back."""
    make(store, 2)
    backup = store.get(MANIFEST).data
    make(store, 3)
    drain(store)
    store.put(MANIFEST, backup)


def test_should_not_append_where_its_mark_would_not_be_kept(store: Store) -> None:
    restored(store)
    with pytest.raises(ManifestLost, match="restored from a backup") as caught:
        producer(store)
    assert (caught.value.next_sequence, caught.value.seen_next_sequence) == (2, 5)
    assert entries_of(store) == [b"call 0", b"call 1"], "nothing was written"


def test_should_know_every_call_once_an_operator_goes_on_with_the_older_manifest(store: Store) -> None:
    restored(store)
    ClientLedger(store, MANIFEST, SystemClock()).accept_loss(lambda: manifest_of(store))
    make(store, 1)  # call 5: how far the client was is kept
    drain(store)
    with producer(store) as client:
        assert client.next_client_seq == 6
        with pytest.raises(IdempotencyConflict):
            client.produce([b"call 5"], client_seq=5).watcher.await_durable()
    assert entries_of(store) == []


def test_should_not_go_on_with_a_manifest_that_never_held_anything(store: Store) -> None:
    restored(store)
    store.put(MANIFEST, Manifest.empty().claim().to_bytes())
    with pytest.raises(InvalidInput, match="in another folder"):
        ClientLedger(store, MANIFEST, SystemClock()).accept_loss(lambda: manifest_of(store))


def test_should_not_take_a_manifest_that_was_read_too_early_for_one_that_was_put_back(memory: Store) -> None:
    make(memory, 2)
    old = manifest_of(memory)
    make(memory, 3)
    drain(memory)
    looks = iter([old])
    guard = ClientGuard("sensor", memory, MANIFEST, SystemClock())
    assert guard.open(lambda: next(looks, None) or manifest_of(memory)) == 4
