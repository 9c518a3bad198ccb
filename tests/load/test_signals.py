"""What signals do to a loader that runs."""

from __future__ import annotations

import signal
import threading

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
