"""What a task does for the Python process it runs in."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from buffer_delta.decode.group import Group
from buffer_delta.spark.jobs import gather
from buffer_delta.spark.workers import acknowledge

QUICKACK = getattr(socket, "TCP_QUICKACK", None)


@pytest.mark.skipif(QUICKACK is None, reason="only Linux can be asked to acknowledge, and only there it is late")
def test_should_acknowledge_at_once_what_came_through_loopback() -> None:
    assert QUICKACK is not None
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as theirs,
    ):
        for end in (ours, theirs):
            end.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)  # as after some talk back and forth
        acknowledge()
        assert [end.getsockopt(socket.IPPROTO_TCP, QUICKACK) for end in (ours, theirs)] == [1, 1]
        assert ours.send(b"still open") == 10


def test_should_leave_other_open_files_alone() -> None:
    with socket.socket() as unconnected, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            acknowledge()
            assert ours.send(b"x") == 1
        assert unconnected.fileno() >= 0
        assert datagrams.fileno() >= 0


def test_should_spare_workers_the_search_for_garbage_in_modules(spark: SparkSession) -> None:
    def frozen(_group: Group) -> Iterator[bytes]:  # in here: a worker cannot import this file
        yield str(gc.get_freeze_count()).encode()

    counts = [int(told) for _ in range(20) for told in gather(spark, frozen, [Group([])])]
    assert counts[-1] > 0  # of a worker that has done a task before; there are far fewer of them
