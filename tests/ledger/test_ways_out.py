"""A damaged ledger: what its reader is told to do is right for that reader, and works."""

from __future__ import annotations

import pytest

from buffer.config import ProducerConfig
from buffer.errors import CorruptLedger
from buffer.leases import LeaseQueue
from buffer.ledger.binding import Binding
from buffer.produce.producer import Producer
from buffer_delta.load.plans import Plans
from tests.leases.lease_support import MANIFEST, Work


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"version": 2, "generation": 0}'])
def test_should_name_a_way_out_for_each_user(damage: bytes) -> None:
    work = Work(2)
    work.open()
    work.store.put(f"{MANIFEST}.ledger", damage)
    with pytest.raises(CorruptLedger, match="app_id that the table was loaded with"):
        Plans(work.store, MANIFEST, work.clock).bind(Binding("app", ("t",)))
    for adopt in (False, True):
        with pytest.raises(CorruptLedger, match="delete the ledger, and open the queue with adopt=True") as caught:
            LeaseQueue.open(work.config(), work.leases, adopt=adopt, clock=work.clock)
        assert "app_id" not in str(caught.value)
    config = ProducerConfig(store=work.store, manifest_path=MANIFEST, data_path_prefix="jobs")
    with pytest.raises(CorruptLedger, match="how far each client id got") as caught:
        Producer(config, client_id="one")
    assert "adopt" not in str(caught.value)


def test_should_begin_anew_as_the_message_says() -> None:
    work = Work(2)
    work.open()
    work.store.put(f"{MANIFEST}.ledger", b"{")
    work.store.delete_many([f"{MANIFEST}.ledger"])
    assert len(work.open(adopt=True).consume(9)) == 2
