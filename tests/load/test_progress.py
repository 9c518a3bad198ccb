"""What a run did, in one line."""

from __future__ import annotations

from buffer_delta.load.progress import Progress, Total


def test_should_say_in_one_line_what_a_run_did() -> None:
    assert str(Total()) == "there was nothing to load"
    assert str(Total().with_deleted(3)) == "there was nothing to load; 3 unreferenced batches deleted"
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
    assert str(more) == "loaded 2 batches in 2 commits: 20 rows, 2.0 MB in 4.0 s; 1 unreferenced batch deleted"


def test_should_say_one_commit_in_a_line_with_units_that_fit() -> None:
    small = Progress(4, 4, 1, 1, 18, 1, 0.5, 0, 0.0, 1)
    assert str(small) == "batch 4: 1 row, 1 dead letter, 18 B in 0.50 s (36 B/s), 1 file; nothing left to load"
    large = Progress(0, 59, 60_000, 0, 6_800_000, 2, 0.2, 144, 71.0, 1)
    assert str(large) == (
        "batches 0..59: 60,000 rows, 6.8 MB in 0.20 s (34.0 MB/s), 2 files; 144 batches behind (1 min 11 s)"
    )
