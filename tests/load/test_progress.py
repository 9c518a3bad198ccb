"""What a run did, in one line."""

from __future__ import annotations

from buffer_delta.load.progress import Progress, Total


def test_should_say_in_one_line_what_a_run_did() -> None:
    assert str(Total()) == "there was nothing to load"
    assert str(Total().with_deleted(3)) == "there was nothing to load; 3 batches deleted that nobody needs"
    one = Progress(
        first=0,
        last=0,
        rows=10,
        dead_letters=0,
        bytes=1_000_000,
        files=1,
        seconds=2.0,
        lag_batches=0,
        lag_seconds=0.0,
        attempts=1,
    )
    assert str(Total().plus(one)) == "loaded 1 batch in 1 commit: 10 rows, 1.0 MB in 2.0 s"
    more = Total().plus(one).plus(one).with_deleted(1)
    assert str(more) == "loaded 2 batches in 2 commits: 20 rows, 2.0 MB in 4.0 s; 1 batch deleted that nobody needs"
