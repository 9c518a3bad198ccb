"""What the newcomer's walk takes for the same output, and what not. The walk itself is `make walk`."""

from __future__ import annotations

from tests.documents import blocks
from tests.walk import LEFT_OUT, after, differs, plain


def test_should_take_other_numbers_for_the_same_line() -> None:
    one = " 14.5 s  batches 0..59: 180,000 rows, 20.5 MB in 1.56 s (13.2 MB/s), 2 files; 105 batches behind (8.6 s)"
    two = "  9.1 s  batches 0..59: 180,000 rows, 998.1 kB in 0.90 s (1.1 MB/s), 1 file; nothing left to load"
    assert plain(one) == plain(two)
    assert differs([one, "done"], [two, "", "done"]) is None


def test_should_notice_a_line_that_is_other_missing_or_too_much() -> None:
    assert differs(["a", "b"], ["a", "c"]) == "printed: 'b', said: 'c'"
    assert differs(["a", "b"], ["a"]) == "printed: 'b', said: 'nothing more'"
    assert differs(["a", "b"], ["a", "x", "b"]) == "printed: 'b', said: 'x'"
    assert differs(["a"], ["a", "b"]) == "said, and not printed: 'b'"


def test_should_pass_over_what_is_marked_as_left_out() -> None:
    assert differs(["a", LEFT_OUT, "b", LEFT_OUT], ["a", "x", "y", "b", "z"]) is None
    assert differs(["a", LEFT_OUT, "b"], ["a", "x"]) == "printed: 'b', said: 'x'"
    assert after(["Installing …", "  0.0 s  begin"], " 12.3 s  begin") == ["  0.0 s  begin"]


def test_should_have_something_to_walk_through() -> None:
    commands = [command for block in blocks("console") if block.document == "README.md" for command in block.commands()]
    assert [command.split()[0] for command in commands] == [*["make"] * 3, "printf", "buffer", *["buffer-delta"] * 2]
