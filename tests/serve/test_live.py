"""The line on a terminal: what it says of how fast it goes and when it will have caught up."""

from __future__ import annotations

from buffer.inspect.status import QueueStatus
from buffer_delta.cli.live import bytes_per_second, caught_up_in_s, line
from buffer_delta.serve.facts import CommitFacts, LoaderFacts
from buffer_delta.serve.status import Status


def commit(second: int, lag: int, size: int = 1_000_000) -> CommitFacts:
    return CommitFacts(second * 1000, 0, 0, 10, 0, size, 0.5, lag, 1.0, 1)


def test_should_tell_when_it_will_have_caught_up() -> None:
    shrinking = [commit(0, 100), commit(10, 80), commit(20, 60)]
    assert caught_up_in_s(shrinking, 60) == 30.0
    assert caught_up_in_s([commit(0, 50), commit(10, 70)], 70) is None, "it grows"
    assert caught_up_in_s([commit(0, 50)], 50) is None
    assert caught_up_in_s([], 1) is None
    old = [commit(0, 1), commit(1000, 100), commit(1010, 50)]
    assert caught_up_in_s(old, 50) == 10.0, "what was long ago does not count"


def test_should_say_how_fast_it_is_while_it_works() -> None:
    assert bytes_per_second([commit(0, 1), commit(10, 1)]) == 2_000_000
    assert bytes_per_second([]) is None
    loader = LoaderFacts(
        phase="loading",
        phase_seconds=3.0,
        plan_first=4,
        plan_last=9,
        plan_attempts=2,
        rows=1_234_567,
        last_commits=(commit(0, 100), commit(10, 80)),
    )
    said = line(Status(time_ms=0, queue=None, loader=loader))
    assert said == "loading 4..9 for 3.0 s, attempt 2 · 1,234,567 rows · 2.0 MB/s"


def test_should_say_how_long_it_will_take_only_once_it_can_tell() -> None:
    queue = status_of_length(60)
    shrinking = LoaderFacts(phase="waiting", last_commits=(commit(0, 100), commit(10, 80)))
    assert line(Status(time_ms=0, queue=queue, loader=shrinking)).endswith("60 behind (5.0 s), ~30.0 s left")
    growing = LoaderFacts(phase="waiting", last_commits=(commit(0, 50), commit(10, 80)))
    assert line(Status(time_ms=0, queue=queue, loader=growing)).endswith("60 behind (5.0 s), not catching up")
    begun = LoaderFacts(phase="waiting", last_commits=(commit(0, 50),))
    assert line(Status(time_ms=0, queue=queue, loader=begun)).endswith("60 behind (5.0 s)")


def status_of_length(length: int) -> QueueStatus:
    return QueueStatus("memory://", "ingest/manifest", 1, 0, length, length, 22, 0, 0, 5.0, None, None)
