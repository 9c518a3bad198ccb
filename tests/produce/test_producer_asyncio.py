"""The producer in asyncio: awaiting handles, and waiting for room without stalling the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from buffer.errors import StoreUnusable
from buffer.produce.durability import Durable, WriteHandle
from buffer.produce.producer import Producer
from buffer.store import open_store
from buffer.testing import Fault, FaultyStore
from tests.nets import wait_until
from tests.produce.producer_support import (
    HeldStore,
    entries_of,
    make_producer,
    objects_of,
    queue_of,
)


def test_should_await_handles_in_asyncio() -> None:
    store = open_store("memory://")

    async def main(producer: Producer) -> list[Durable]:
        handles = [await producer.produce_async([b"%d" % index]) for index in range(100)]
        return list(await asyncio.gather(*handles))

    with make_producer(store, flush_interval_ms=10) as producer:
        results = asyncio.run(main(producer))
        again = asyncio.run(_await_one(producer))
    assert {result.location for result in results} <= objects_of(store)
    assert again.sequence == len(queue_of(store)) - 1
    assert entries_of(store) == [*[b"%d" % index for index in range(100)], b"again"]


def test_should_let_the_event_loop_run_while_a_handle_is_awaited() -> None:
    store = HeldStore(open_store("memory://"))

    async def main(producer: Producer) -> Durable:
        with ExitStack() as held:
            held.enter_context(store.hold("put"))
            waiting = asyncio.ensure_future(await producer.produce_async([b"one"]))
            await asyncio.to_thread(store.await_waiting, 1)
            assert not waiting.done()
            held.close()
            return await waiting

    with make_producer(store, flush_interval_ms=1) as producer:
        assert asyncio.run(main(producer)).sequence == 0


async def _await_one(producer: Producer) -> Durable:
    handle = await producer.produce_async([b"again"])
    assert await handle == await handle.watcher, "a settled handle can be awaited again"
    return await handle


def _are_refused(producer: Producer, tasks: Sequence[asyncio.Task[WriteHandle]]) -> bool:
    assert not any(task.done() for task in tasks), "a call that has to wait went through"
    return len(producer._engine._waiting_tasks) == len(tasks)


def test_should_not_block_the_event_loop_while_there_is_no_room() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)

    async def main(producer: Producer) -> None:
        with store.hold("put"):
            await producer.produce_async([b"x" * 100])
            waiting = [asyncio.create_task(producer.produce_async([b"%d" % i * 100])) for i in range(3)]
            await asyncio.to_thread(wait_until, lambda: _are_refused(producer, waiting))
            assert not any(task.done() for task in waiting)
            waiting[1].cancel()
        for task in (waiting[0], waiting[2]):
            await (await task)

    with make_producer(store, max_buffered_bytes=130, flush_interval_ms=5) as producer:
        asyncio.run(main(producer))
    assert sorted(entries_of(inner)) == sorted([b"x" * 100, b"0" * 100, b"2" * 100])


def test_should_survive_an_event_loop_that_is_gone() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)

    async def main(producer: Producer) -> None:
        handle = await producer.produce_async([b"one"])
        waiting = asyncio.ensure_future(handle)
        await asyncio.sleep(0)
        waiting.cancel()

    with make_producer(store) as producer:
        with store.hold("put"):
            asyncio.run(main(producer))
        producer.flush()
        producer.produce([b"two"])
    assert entries_of(inner) == [b"one", b"two"]


def test_should_close_without_stalling_the_event_loop() -> None:
    store = HeldStore(open_store("memory://"))

    async def main() -> Durable:
        with ExitStack() as held:
            held.enter_context(store.hold("put"))
            async with make_producer(store, flush_interval_ms=60_000) as producer:
                handle = await producer.produce_async([b"one"])
                asyncio.get_running_loop().call_later(0.02, held.close)  # runs only if leaving the block does not stall
        result = handle.watcher.result()
        assert result is not None, "leaving the block has flushed it"
        return result

    assert asyncio.run(main()).sequence == 0
    assert entries_of(store) == [b"one"]


def test_should_note_on_the_error_of_the_block_what_could_not_be_flushed() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable, times=100)])

    async def main() -> None:
        async with make_producer(store, flush_interval_ms=60_000) as producer:
            await producer.produce_async([b"one"])
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block") as caught:
        asyncio.run(main())
    assert "closing the producer failed as well" in caught.value.__notes__[0]


def test_should_leave_nothing_behind_when_waiting_is_given_up_again_and_again() -> None:
    """A limit around each wait, and a store that does not answer: what is kept must not grow with the attempts."""
    store = HeldStore(open_store("memory://"))

    async def main(producer: Producer) -> None:
        with store.hold("put"):
            handle = await producer.produce_async([b"x" * 50])
            for _ in range(20):
                for wait in (asyncio.ensure_future(handle), asyncio.ensure_future(producer.produce_async([b"x" * 80]))):
                    await asyncio.sleep(0)
                    wait.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await wait
            await asyncio.sleep(0)
            assert handle.batch_watcher._callbacks == []
            assert len(producer._engine._waiting_tasks) == 0
        await handle

    with make_producer(store, flush_interval_ms=1, max_buffered_bytes=100) as producer:
        asyncio.run(main(producer))
    assert entries_of(store.store) == [b"x" * 50]
