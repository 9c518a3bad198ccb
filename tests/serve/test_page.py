"""The page in a real browser: it shows what the JSON says, on a desk and on a phone; hostile text stays text."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.store import Store, open_store
from buffer.testing import ManualClock
from buffer_delta.errors import Blocked
from buffer_delta.serve.server import StatusServer
from tests.serve.browser import dom, screenshot
from tests.serve.serve_support import FakeLoader, fenced, filled, get_json, served

HOSTILE = "<img src=x onerror=alert(1)>\u202e</script>"
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "status.png"


@contextmanager
def busy_server(store: Store, clock: ManualClock) -> Iterator[StatusServer]:
    """A loader an hour into its work: a flood half an hour ago, a failure, some dead letters."""
    filled(store, clock, 4)
    consumer = Consumer.new(ConsumerConfig(store=store, gc_enabled=False), clock=clock)
    loader = FakeLoader(clock)
    loader.open(consumer.epoch)
    with served(store, clock, loader) as server:
        done = -1
        for step in range(360):
            clock.advance(4)
            coming = 1 + max(0, 40 - abs(200 - step)) // 6 + step % 3
            filled(store, clock, coming)
            clock.advance(3 + coming)
            server.watch.look()
            clock.advance(3 - coming if coming < 3 else 0)
            consumer.next_descriptors(1000)
            last = consumer.known().next_sequence - 1
            rows = 900 * (last - done) + 137 * (step % 7)
            loader.commit(done + 1, last, rows=rows, dead=7 if step == 300 else 0)
            consumer.ack_through(last)
            done = last
        loader.recorder.set_aside({"cannot be read as BIGINT: '…'": 5, HOSTILE: 2})
        filled(store, clock, 3)
        clock.advance(12)
        loader.recorder.planned(done + 1, done + 3, 2)
        loader.recorder.failed("StorageError: the store did not answer within 30 s")
        loader.recorder.planned(done + 1, done + 3, 3)
        server.watch.look()
        yield server


def shown(page: str, fact: str) -> tuple[str, str]:
    """The raw value and the text that stands at a fact."""
    found = re.search(rf'data-fact="{fact}"(?: data-value="([^"]*)")?>([^<]*)<', page)
    assert found, fact
    return found[1], html.unescape(found[2])


def test_should_show_what_the_json_says(tmp_path: Path) -> None:
    with busy_server(open_store("memory://events"), ManualClock()) as server:
        page = dom(server.url)
        _, status = get_json(server, "/api/status")
        for fact in ("lag_batches", "lag_seconds", "backlog_bytes"):
            value = shown(page, fact)[0]
            assert float(value) == status[fact], fact
        assert float(shown(page, "seconds_since_commit")[0]) == status["loader"]["seconds_since_commit"]
        for fact in ("commits", "rows", "retries", "dead_letters"):
            assert shown(page, fact)[1] == f"{status['loader'][fact]:,}"
        assert f">{status['state']}</span>" in page
        assert html.escape(status["reason"], quote=False) in page
        assert page.count("<tr>") > len(status["loader"]["last_commits"])
        assert "<img" not in page
        assert html.escape("<img src=x onerror=alert(1)>", quote=False) in page
        assert 'class="line"' in page, "the charts are drawn"
        picture = IMAGE if os.environ.get("UPDATE_IMAGES") else tmp_path / "status.png"
        screenshot(server.url, picture, 1000, 900)
        assert picture.stat().st_size > 20_000, "a page of one colour is smaller"


def test_should_be_no_wider_than_a_phone(memory: Store) -> None:
    with busy_server(memory, ManualClock()) as server:
        page = dom(server.url, "--window-size=320,800")
    found = re.search(r'data-overflow="(-?\d+)"', page)
    assert found
    assert int(found[1]) <= 0


@pytest.mark.parametrize("state", ["idle", "stuck", "blocked", "fenced"])
def test_should_show_the_state_that_health_tells(memory: Store, state: str) -> None:
    clock = ManualClock()
    filled(memory, clock, 2)
    loader = FakeLoader(clock)
    with served(memory, clock, loader) as server:
        consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
        loader.open(consumer.epoch)
        if state == "idle":
            consumer.next_descriptors(2)
            consumer.ack_through(1)
            loader.commit(0, 1)
        else:
            loader.recorder.planned(0, 1, 1)
        if state == "blocked":
            loader.recorder.ended(Blocked("2 batches cannot be read"))
        if state == "fenced":
            loader.recorder.ended(fenced())
        clock.advance(1000)
        server.watch.look()
        _, health = get_json(server, "/healthz")
        page = dom(server.url)
        assert health["state"] == state
        assert f">{state}</span>" in page
        assert html.escape(health["reason"], quote=False) in page
        assert f'class="pill {"ok" if state == "idle" else "bad"}"' in page
