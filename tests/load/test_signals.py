"""What signals do to a loader that runs."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from buffer.stopping import StopFlag
from buffer_delta.load.signals import stopped_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_should_stop_at_the_first_signal_and_break_off_at_the_second(number: signal.Signals) -> None:
    stop, before = StopFlag(), signal.getsignal(number)
    with stopped_by_signals(stop, handle=True):
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt, match=f"second {number.name}"):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_should_leave_signals_alone_where_they_are_not_its_own() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def look(handle: bool) -> None:
        with stopped_by_signals(StopFlag(), handle=handle):
            seen.append(signal.getsignal(signal.SIGTERM))

    look(handle=False)
    thread = threading.Thread(target=look, args=(True,))
    thread.start()
    thread.join()
    assert seen == [before, before]


@pytest.mark.parametrize("numbers", [{signal.SIGINT}, {signal.SIGTERM}, {signal.SIGINT, signal.SIGTERM}])
def test_should_raise_the_blocks_own_error_where_a_handler_was_not_set_from_python(
    monkeypatch: pytest.MonkeyPatch, numbers: set[signal.Signals]
) -> None:
    """A host process, a JVM say, may have installed its own before: Python knows nothing of it but None."""
    real_set, real_get, foreign = signal.signal, signal.getsignal, set(numbers)
    before = {number: real_get(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def set_handler(number: signal.Signals, handler: Any) -> Any:
        earlier = real_set(number, handler)
        if number not in foreign:
            return earlier
        foreign.discard(number)
        return None

    monkeypatch.setattr(signal, "signal", set_handler)
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number in foreign else real_get(number))
    try:
        with pytest.raises(RuntimeError, match="the loader's own"), stopped_by_signals(StopFlag(), handle=True):
            raise RuntimeError("the loader's own")
        assert not foreign, "ours were installed"
        assert {real_get(number) for number in numbers} == {signal.SIG_DFL}
        assert all(real_get(number) is before[number] for number in before.keys() - numbers)
    finally:
        for number, handler in before.items():
            real_set(number, handler)
