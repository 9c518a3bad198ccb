"""The parts of a range, as far as that goes without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from buffer_delta.decode.layout import RowLayout
from buffer_delta.load import work
from buffer_delta.load.work import SparkWork


class Frame:
    """Rows of which nothing is asked but themselves."""

    def frame(self) -> Frame:
        return self


def test_should_number_the_rows_of_those_tables_that_get_some() -> None:
    """A transform that makes several rows of one, and a range without a record for one of the routes."""
    mine: Any = object.__new__(SparkWork)
    mine._config = SimpleNamespace(dead_letters="bad")
    mine._targets = dict.fromkeys(("events", "clicks", "views", "bad"))
    mine._format = SimpleNamespace(evolving=False)
    mine._layout = RowLayout.renamed({})
    mine._routing = SimpleNamespace(numbers_rows=True)
    parts: Any = {"events": Frame(), "views": Frame(), "bad": Frame()}
    with patch.object(work, "numbered", lambda rows, *_: ("numbered", rows)), patch.object(work, "FrameRows", tuple):
        done = mine._completed(parts, lambda _: None)
    numbered = [("numbered", parts[name]) for name in ("events", "views")]
    assert done == {"events": numbered[0], "views": numbered[1], "bad": parts["bad"]}
