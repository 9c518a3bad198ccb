"""The page in a real browser: it shows what the JSON says, on a desk and on a phone; hostile text stays text."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.leases.values import LeaseStats
from buffer.ledger.plan import Ledger
from buffer.model import Metadata
from buffer.names import ledger_path
from buffer.store import Store, open_store
from buffer.testing import ManualClock
from buffer_delta.errors import Blocked
from buffer_delta.serve.server import StatusServer
from buffer_delta.serve.status import ClientFacts, TableStatus
from tests.consume.consumer_support import fill
from tests.serve.browser import Browser, running_browser, shown
from tests.serve.serve_support import FakeLoader, fenced, filled, get_json, served

HOSTILE = "<img src=x onerror=alert(1)>\u202e</script>"


UNCUT = "[...document.querySelectorAll('.chart text')].every(t => t.getBBox().x >= 0)"
"""Whether every label of the charts is there as a whole."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


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


def test_should_show_what_the_json_says(browser: Browser, tmp_path: Path) -> None:
    with busy_server(open_store("memory://events"), ManualClock()) as server:
        page = browser.look(server.url)
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
        assert browser.asked(UNCUT)
        browser.screenshot(tmp_path / "status.png", whole=True)
        assert (tmp_path / "status.png").stat().st_size > 20_000, "a page of one colour is smaller"


def test_should_be_no_wider_than_a_phone(browser: Browser) -> None:
    with busy_server(open_store("memory://events"), ManualClock()) as server:
        page = browser.look(server.url, 320, 690, dark=True)
        assert browser.asked("innerWidth") == 320
        found = re.search(r'data-overflow="(-?\d+)"', page)
        assert found
        assert int(found[1]) <= 0
        assert browser.asked("[...document.querySelectorAll('table, svg')].every(e => e.scrollWidth <= innerWidth)")
        assert browser.asked(UNCUT)


def test_should_not_go_on_showing_a_state_that_nobody_confirms(browser: Browser, memory: Store) -> None:
    """A green "idle" over a loader that died an hour ago would send people back to bed."""
    clock = ManualClock()
    filled(memory, clock, 2)
    with served(memory, clock, FakeLoader(clock)) as server:
        browser.look(server.url)
        assert browser.asked("document.getElementById('state').textContent") == "starting"
    browser.call("Runtime.evaluate", expression="refresh()", awaitPromise=True)
    assert browser.asked("document.getElementById('state').textContent") == "no answer"
    assert browser.asked("document.getElementById('state').className") == "pill bad"
    assert "as of 2023-11-14 22:13:20 UTC" in browser.asked("document.getElementById('reason').textContent")
    assert browser.asked("document.title") == f"no answer · {memory.url} · ingest/manifest"
    assert browser.asked("document.querySelector('main').className") == "late"


@pytest.mark.parametrize(
    ("time_ms", "said"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (1_700_000_000_000_000_000, "1700000000000000000 ms since 1970"),
        (-(2**63), "-9223372036854775808 ms since 1970"),
    ],
)
def test_should_show_whatever_time_a_producer_gave(browser: Browser, memory: Store, time_ms: int, said: str) -> None:
    """Nanoseconds ended the page: it said that nobody answered."""
    fill(memory, 1, metadata=[Metadata(0, time_ms, b"")])
    with served(memory, ManualClock()) as server:
        browser.look(server.url)
    assert browser.asked("document.getElementById('state').textContent") == "waiting"
    assert browser.asked("[...document.querySelectorAll('#queue-facts dd')].map(d => d.textContent)")[3] == said


def told(server: StatusServer, **changes: Any) -> None:
    """Have the server tell a status that is made up."""
    found = dataclasses.replace(server.watch.status(), **changes)
    server.watch.status = lambda: found  # type: ignore[method-assign]


def test_should_show_every_digit_of_a_number(browser: Browser, memory: Store) -> None:
    """A client may number its calls by the time in nanoseconds, more than a number of JavaScript holds."""
    clock = ManualClock()
    filled(memory, clock)
    numbers = (2**64 - 1, 1_700_000_000_123_456_789, 2**53 + 1, 7)
    with served(memory, clock) as server:
        told(server, clients=ClientFacts(4, None, tuple((f"c{n}", n, 0) for n in numbers)))
        browser.look(server.url)
    seen = browser.asked("[...document.querySelectorAll('#clients tbody td:nth-child(2)')].map(d => d.textContent)")
    assert seen == [f"{number:,}" for number in numbers]


@pytest.mark.parametrize("width", [320, 640, 700, 1000])
def test_should_stay_readable_with_long_names_and_huge_numbers(browser: Browser, memory: Store, width: int) -> None:
    clock, huge, name = ManualClock(), 2**63, "warehouse_production_" * 12
    filled(memory, clock)
    loader = FakeLoader(clock)
    loader.open()
    loader.commit(0, 2)
    facts = loader.facts()
    commit = dataclasses.replace(facts.last_commits[0], first=10**10, last=10**10 + 999, rows=10**8, lag_seconds=4e5)
    facts = dataclasses.replace(facts, error=name, last_commits=(commit,), dead_letter_reasons={name: huge})
    with served(memory, clock, loader) as server:
        told(
            server,
            loader=facts,
            tables=(
                TableStatus(name, True, 10**10, 10**8, problem=name, version=10**8),
                TableStatus("t", None, None, None),
            ),
            clients=ClientFacts(huge, (0, huge), ((name, huge, huge),)),
            leases=LeaseStats(*[huge] * 12, tuple(range(huge, huge + 20))),
        )
        page = browser.look(server.url, width)
    assert re.search(r'data-overflow="(-?\d+)"', page)[1] == "0"  # type: ignore[index]
    beyond = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    assert browser.asked(f"{beyond}.map(e => e.textContent)") == []
    widths = browser.asked("[...document.querySelectorAll('td.text')].map(e => e.clientWidth).filter(w => w)")
    assert min(widths) >= 120, "a name of one character a line cannot be read"
    if width > 768:  # else every row is a small list
        lines = "[...document.querySelectorAll('#commits td')].map(e => e.clientHeight)"
        assert len(set(browser.asked(lines))) == 1, "no time and no number is broken apart"


def test_should_say_that_it_cannot_show_something(browser: Browser, memory: Store) -> None:
    clock = ManualClock()
    filled(memory, clock)
    with served(memory, clock) as server:
        browser.look(server.url)
        browser.call("Runtime.evaluate", expression="draw = () => { throw new Error('no such thing') }")
        browser.call("Runtime.evaluate", expression="refresh()", awaitPromise=True)
    assert browser.asked("document.getElementById('state').textContent") == "not shown"
    assert "no such thing" in browser.asked("document.getElementById('reason').textContent")


def test_should_not_call_a_queue_empty_that_nobody_has_seen(browser: Browser, memory: Store) -> None:
    clock = ManualClock()
    with served(memory, clock) as server:
        page = browser.look(server.url)
        assert ">unreachable</span>" in page
        assert browser.asked("document.getElementById('queue').textContent") == f"{memory.url} ingest/manifest"
        assert browser.asked("document.querySelector('#chart-lag svg').textContent").endswith("nothing to show yet")
        assert (shown(page, "lag_batches")[1], shown(page, "waiting")[1]) == ("–", "–")
        filled(memory, clock, 2)
        server.watch.look()
        clock.advance(1)
        assert shown(browser.look(server.url), "waiting")[1] == "2 batches, 0..1"
        consumer = Consumer.new(ConsumerConfig(store=memory, gc_enabled=False), clock=clock)
        consumer.next_descriptors(2)
        consumer.ack_through(1)
        server.watch.look()
        clock.advance(1)
        assert shown(browser.look(server.url), "waiting")[1] == "nothing"


def test_should_not_break_the_words_of_a_table_apart(browser: Browser, memory: Store) -> None:
    """Beside a path that takes all the room there is."""
    clock = ManualClock()
    filled(memory, clock)
    ledger = Ledger(queue_id="01TEST", app_id="a", tables=("/lake/" + "x" * 200,), born=True)
    memory.put(ledger_path("ingest/manifest"), ledger.to_bytes())
    with served(memory, clock) as server:
        browser.look(server.url)
        last = "document.querySelector('#tables th:last-child')"
        assert browser.asked(f"{last}.textContent") == "version"
        assert browser.asked(f"{last}.scrollWidth <= {last}.clientWidth")
        range_of = f"(() => {{ const r = document.createRange(); r.selectNodeContents({last}); return r; }})()"
        assert browser.asked(f"{range_of}.getClientRects().length") == 1, "one line"


@pytest.mark.parametrize("seconds", [4.5, 75, 931, 12_345, 400_000])
@pytest.mark.parametrize(("minutes", "first_label"), [(1, "−8 min"), (19, "−20 min"), (59, "−60 min")])
def test_should_have_room_for_every_label_of_a_chart(
    browser: Browser, memory: Store, seconds: float, minutes: int, first_label: str
) -> None:
    clock = ManualClock()
    filled(memory, clock, 1)
    with served(memory, clock) as server:
        browser.look(server.url, 320, 690)
        points = f"[[[{10**12 - 60_000 * minutes}, 0], [{10**12}, {seconds}]]]"
        browser.asked(f"chart('chart-lag', {10**12}, {points}, (v) => seconds(v).replace('.0 s', ' s'))")
        labels = "[...document.querySelectorAll('#chart-lag text')].map(t => t.textContent)"
        assert first_label in browser.asked(labels)
        assert browser.asked(UNCUT), browser.asked(labels)


@pytest.mark.parametrize("state", ["idle", "stuck", "blocked", "fenced"])
def test_should_show_the_state_that_health_tells(browser: Browser, memory: Store, state: str) -> None:
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
        page = browser.look(server.url)
        assert health["state"] == state
        assert f">{state}</span>" in page
        assert html.escape(health["reason"], quote=False) in page
        assert f'class="pill {"ok" if state == "idle" else "bad"}"' in page
