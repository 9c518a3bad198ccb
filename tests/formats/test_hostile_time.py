"""Work grows with the bytes, not with their square: what a record of 64 kB costs tells what one of 16 MB would."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from buffer.store.failures import Failure
from buffer_delta.formats import JsonFormat
from buffer_delta.formats.base import Format
from buffer_delta.formats.csv import CsvFormat
from tests.formats.format_support import binary, parse

DECIMAL = "id BIGINT, c DECIMAL(10, 2)"


def worked_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.parametrize(
    ("form", "entry"),
    [
        (JsonFormat(DECIMAL), '{{"id":1,"c":"{}x"}}'),
        (JsonFormat(DECIMAL), '{{"id":1,"c":{}}}'),
        (JsonFormat(DECIMAL), '{{"id":1,"c":0.{}}}'),
        (JsonFormat("c DOUBLE"), '{{"c":"{}x"}}'),
        (JsonFormat(), '{{"c":{}.5}}'),
        (CsvFormat("c DECIMAL(10, 2)"), "{}x"),
        (CsvFormat("c DOUBLE"), "{}x"),
        (CsvFormat("c BIGINT"), "{}"),
    ],
)
def test_should_read_a_long_number_in_one_pass(form: Format, entry: str) -> None:
    """Of the CPU, so a busy machine changes nothing. Four times the digits: quadratic work is 16 times as much."""
    form = form.with_schema(form.discover(binary(entry.format(10).encode()))) if form.evolving else form

    def reading(digits: int) -> Callable[[], object]:
        return lambda: parse(form, entry.format("1" * digits))

    reading(100)()
    assert worked_s(reading(64_000)) < 10 * worked_s(reading(16_000)) + 0.5


@pytest.mark.parametrize("text", ["\n", " ", "\n  status: ", "<Message>", "?"])
def test_should_read_a_servers_error_in_one_pass(text: str) -> None:
    def reading(length: int) -> Callable[[], object]:
        return lambda: Failure(RuntimeError("x\n\nDebug source:\n" + text * (length // len(text))))

    assert worked_s(reading(64_000)) < 10 * worked_s(reading(16_000)) + 0.5
