"""A signal handler may flush and close the producer in the middle of a call of the same thread."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from buffer.config import ProducerConfig
from buffer.errors import Closed, IdempotencyConflict, InvalidInput, StoreUnusable
from buffer.produce.durability import Durable, WriteHandle
from buffer.produce.intake import Intake
from buffer.produce.producer import Producer
from buffer.store import open_store
from buffer.store.base import Store
from buffer.testing import Fault, FaultyStore
from tests.interrupted import Raised, raising_at
from tests.nets import HANGS_S
from tests.produce.producer_support import NEVER_MS, entries_of, make_producer

pytestmark = pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="no signals on this system")


@contextmanager
def handling(act: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Interrupted:
    """Raises the signal in the middle of the intake, where the producer's lock is held, at the call that is due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_call: int) -> None:
        real, calls = Intake.offer, 0

        def offer(self: Intake, *args: Any) -> WriteHandle | None:
            nonlocal calls
            calls += 1
            if calls == at_call:
                signal.raise_signal(signal.SIGUSR1)
            return real(self, *args)

        monkeypatch.setattr(Intake, "offer", offer)


@pytest.fixture
def producer(memory: Store) -> Iterator[Producer]:
    with make_producer(memory) as producer:
        yield producer


def test_should_flush_from_a_handler_that_interrupts_produce(
    producer: Producer, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interrupted(monkeypatch, at_call=2)
    with handling(producer.flush):
        first = producer.produce([b"first"])
        second = producer.produce([b"second"])
    assert isinstance(first.watcher.result(), Durable), "flushed before the interrupted call has returned"
    assert isinstance(second.watcher.result(), Durable)
    assert entries_of(memory) == [b"first", b"second"]
    producer.produce([b"third"]).watcher  # noqa: B018 - it goes on


def test_should_close_from_a_handler_that_interrupts_produce(
    producer: Producer, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interrupted(monkeypatch, at_call=2)
    with handling(producer.close):
        handles = [producer.produce([b"first"]), producer.produce([b"second"])]
        assert all(isinstance(handle.watcher.result(), Durable) for handle in handles)
        with pytest.raises(Closed):
            producer.produce([b"third"])
    assert entries_of(memory) == [b"first", b"second"]


def test_should_close_before_the_exception_of_the_handler_leaves_the_call(
    producer: Producer, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_and_exit() -> None:
        producer.close()
        sys.exit(7)

    Interrupted(monkeypatch, at_call=2)
    with handling(close_and_exit):
        first = producer.produce([b"first"])
        with pytest.raises(SystemExit):
            producer.produce([b"not accepted any more"])
        assert isinstance(first.watcher.result(), Durable)
    assert entries_of(memory) == [b"first"]


def test_should_report_at_the_next_close_what_could_not_be_flushed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not from the interrupted call, which was accepted: its caller would produce it again."""
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    producer = make_producer(store)
    Interrupted(monkeypatch, at_call=1)
    with handling(producer.close):
        handle = producer.produce([b"first"])
    assert isinstance(handle.watcher.result(), StoreUnusable)
    assert "1 batches (1 entries) could not be made durable" in caplog.text
    with pytest.raises(StoreUnusable, match="1 batches"):
        producer.close()


@pytest.mark.parametrize("ask", ["flush", "close"])
def test_should_ask_twice_without_waiting_for_itself(producer: Producer, memory: Store, ask: str) -> None:
    """The handler comes while the same thread flushes or closes, right before it waits."""
    interruptions = 0
    real = producer._engine._begin_close if ask == "close" else producer._engine._committer.pending

    def interrupted(*args: Any) -> Any:
        nonlocal interruptions
        interruptions += 1
        if interruptions == 1:
            signal.raise_signal(signal.SIGUSR1)
        return real(*args)

    if ask == "close":
        producer._engine._begin_close = interrupted  # type: ignore[method-assign]
    else:
        producer._engine._committer.pending = interrupted  # type: ignore[method-assign]
    handle = producer.produce([b"first"])
    with handling(getattr(producer, ask)):
        getattr(producer, ask)()
    assert interruptions >= 1
    assert isinstance(handle.watcher.result(), Durable)


HAMMER = """
import signal, sys
from buffer import Producer, ProducerConfig
from buffer.errors import Closed

producer = Producer(ProducerConfig(store=sys.argv[1], flush_interval_ms=1))
ask, handled = sys.argv[2], 0

def handle(*_):
    global handled
    handled += 1
    if ask == "flush" and handled < 60:
        try:
            producer.flush()
        except Closed:  # by the next handler, which interrupted this one; raised from here it would be the call's
            pass
    else:
        producer.close()

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
count, handles = 0, []
try:
    while True:
        handles.append(producer.produce([b"%d" % count]))
        count += 1
except Closed:
    signal.setitimer(signal.ITIMER_REAL, 0)
producer.close()
handles = [handle.watcher.result() for handle in handles]
assert all(type(result).__name__ == "Durable" for result in handles), handles
print(count)
"""


@pytest.mark.parametrize("ask", ["flush", "close"])
def test_should_survive_handlers_at_any_moment(tmp_path: Any, ask: str) -> None:
    for number in range(3):
        folder = str(tmp_path / f"queue{number}")
        run = subprocess.run([sys.executable, "-c", HAMMER, folder, ask], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert entries_of(open_store(folder)) == [b"%d" % n for n in range(int(run.stdout))]


def test_should_leave_other_threads_alone(producer: Producer, memory: Store) -> None:
    """Only the thread that holds the lock puts it off; another one waits its turn as ever."""
    with producer._engine._lock:
        other = threading.Thread(target=producer.flush)
        other.start()
        assert not producer._engine._deferred
    other.join()


ACROSS_THE_DEADLINE = """
import signal, time
from buffer.produce.durability import DurabilityWatcher

signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.002))
for number in range(150):
    watcher = DurabilityWatcher()
    signal.setitimer(signal.ITIMER_REAL, 0.0195 + number % 20 * 0.00005)
    assert not watcher.wait(0.02)
    assert not watcher._callbacks, "nobody waits any more"
print("done")
"""


def test_should_stop_waiting_when_a_signal_handler_runs_across_the_deadline() -> None:
    """In CPython 3.11 a queue's `get` waits for ever then. One of the rounds meets it; none may hang."""
    ran = subprocess.run(
        [sys.executable, "-c", ACROSS_THE_DEADLINE], capture_output=True, text=True, check=False, timeout=HANGS_S
    )
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr


@pytest.mark.parametrize("metadata", [b"", b"of the third"])
@pytest.mark.parametrize("client_id", [None, "a"])
@pytest.mark.parametrize("flush_size_bytes", [40, 1 << 20])
def test_should_keep_a_call_whole_that_a_handler_ends_at_any_moment(
    memory: Store, client_id: str | None, flush_size_bytes: int, metadata: bytes
) -> None:
    """It is in its batch or it is not, and the producer goes on. With a client id it may be repeated."""
    moment, ended = 0, False
    while not ended:
        moment += 1
        store = open_store("memory://")
        config = ProducerConfig(store=store, flush_size_bytes=flush_size_bytes, flush_interval_ms=NEVER_MS)
        producer = Producer(config, client_id=client_id)

        def produce(number: int, producer: Producer = producer) -> WriteHandle:
            return producer.produce([b"%d" % number], metadata if number == 2 else b"", number if client_id else None)

        for number in range(2):
            produce(number)
        ended = not raising_at(moment, lambda: produce(2))
        again = produce(2) if client_id else None
        for number in (3, 4):
            produce(number)
        producer.close()
        found = entries_of(store)
        if client_id is None and b"2" not in found:
            found.insert(2, b"2")
        assert found == [b"0", b"1", b"2", b"3", b"4"], moment
        assert again is None or isinstance(again.watcher.result(), Durable | IdempotencyConflict), moment
        assert producer._engine._intake._buffered_bytes == 0, moment


def test_should_let_others_in_after_a_handler_has_ended_the_first_one_in_line(memory: Store) -> None:
    """It stood in line at the moment when its handler raised."""
    producer = make_producer(memory, max_buffered_bytes=100)
    turns = producer._engine._turns

    class Line(deque[threading.Condition]):
        def append(self, turn: threading.Condition) -> None:
            super().append(turn)
            if len(self) == 1 and not raised:
                raised.append(True)
                raise Raised

    raised: list[bool] = []
    producer._engine._turns = Line(turns)
    producer.produce([b"x" * 70])
    with pytest.raises(Raised):
        producer.produce([b"y" * 70])
    assert not producer._engine._turns
    producer.produce([b"z" * 70])
    producer.close()
    assert entries_of(memory) == [b"x" * 70, b"z" * 70]


@pytest.mark.parametrize("client_id", [None, "a"])
@pytest.mark.parametrize("flush_size_bytes", [1, 1 << 20])
def test_should_keep_every_call_once_if_a_handler_produces_at_any_moment(
    client_id: str | None, flush_size_bytes: int
) -> None:
    """In the middle of a call it is refused: a batch that was just being sealed would get into the queue twice."""
    moment, ended, refused = 0, False, 0
    while not ended:
        moment += 1
        store = open_store("memory://")
        config = ProducerConfig(store=store, flush_size_bytes=flush_size_bytes, flush_interval_ms=NEVER_MS)
        producer = Producer(config, client_id=client_id)
        accepted = [b"0"]

        def handler(producer: Producer = producer, accepted: list[bytes] = accepted) -> None:
            nonlocal refused
            try:
                producer.produce([b"handler"])
                accepted.append(b"handler")
            except InvalidInput:
                refused += 1

        producer.produce([b"0"])
        call = lambda producer=producer: producer.produce([b"1"])  # noqa: E731
        ended = not raising_at(moment, call, within="buffer", act=handler)
        producer.produce([b"2"])
        producer.close()
        assert sorted(entries_of(store)) == sorted([*accepted, b"1", b"2"]), moment
    assert refused


def test_should_refuse_a_handler_that_produces_while_its_own_thread_waits_for_room(memory: Store) -> None:
    """It would stand in line behind the call that it has interrupted, for ever."""
    producer = make_producer(memory, max_buffered_bytes=100)
    lock = producer._engine._lock
    refused: list[InvalidInput] = []

    def handler() -> None:
        with pytest.raises(InvalidInput, match="in the middle of a call of the same producer") as raised:
            producer.produce([b"z"])
        refused.append(raised.value)

    class Line(deque[threading.Condition]):
        def append(self, turn: threading.Condition) -> None:
            super().append(turn)
            real = turn.wait

            def wait() -> bool:
                turn.wait = real  # type: ignore[method-assign]
                if refused:
                    return real()
                state = lock._release_save()  # type: ignore[attr-defined]  # as `Condition.wait` does
                try:
                    signal.raise_signal(signal.SIGUSR1)
                finally:
                    lock._acquire_restore(state)  # type: ignore[attr-defined]
                return True

            turn.wait = wait  # type: ignore[method-assign, assignment]

    producer._engine._turns = Line()
    with handling(handler):
        producer.produce([b"x" * 70])
        producer.produce([b"y" * 70])
    assert len(refused) == 1
    producer.produce([b"z"])
    producer.close()
    assert entries_of(memory) == [b"x" * 70, b"y" * 70, b"z"]
