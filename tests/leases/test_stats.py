"""What is said of a queue with leases in numbers."""

from __future__ import annotations

from tests.leases.lease_support import Work


def test_should_say_of_a_queue_in_order_that_its_head_at_most_is_to_be_had() -> None:
    work = Work(3, ordering_required=True)
    queue = work.open()
    assert queue.stats().ready == 1
    held = queue.consume(3)
    assert (queue.stats().ready, queue.stats().in_flight) == (0, 1)
    queue.nack(held, delay_ms=60_000)
    assert (queue.stats().ready, queue.stats().delayed) == (0, 1)
    assert not queue.consume(3)
    work.clock.advance(60)
    assert (queue.stats().ready, queue.stats().delayed) == (1, 0)
    for _ in range(3):
        queue.ack(queue.consume())
    assert (queue.stats().ready, queue.stats().depth) == (0, 0)
