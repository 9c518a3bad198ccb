"""A real loader, served: what page, health and metrics are made of is what it did."""

from __future__ import annotations

import html
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced
from buffer.inspect.status import queue_status
from buffer.store.open import open_store
from buffer_delta.cli import cli
from buffer_delta.cli.app import EXIT_CODES
from buffer_delta.config import LoaderConfig
from buffer_delta.errors import Blocked
from buffer_delta.load.loader import Loader
from tests.cli.cli_support import InProcess
from tests.dashboard import document, panels
from tests.nets import HANGS_S
from tests.prometheus import check_queries, running_prometheus
from tests.promql import check_scrape
from tests.serve.browser import Browser, find_chromium, running_browser, shown
from tests.spark.queues import numbered, produce

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


class Served:
    """A loader in a thread of its own, and what its server says."""

    def __init__(self, spark: SparkSession, config: LoaderConfig) -> None:
        self.loader = Loader(spark, config)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self._pause = threading.Event()

    def _run(self) -> None:
        try:
            self.loader.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"{self.loader.url}{path}", timeout=HANGS_S) as answer:
                body, code = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            body, code = error.read(), error.code
        return code, json.loads(body) if path != "metrics" else body.decode()

    def wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the status is as wanted; the test's own time limit ends what never comes."""
        while True:
            if self.loader.url is not None:
                status: dict[str, Any] = self.get("api/status")[1]
                if wanted(status):
                    return status
            assert self.thread.is_alive(), self.error
            self._pause.wait(0.1)


class Views:
    """Everything that tells how a loader is doing, asked and compared: JSON, health, metrics, page, command line."""

    def __init__(self, browser: Browser | None, run: InProcess) -> None:
        self._browser, self._run = browser, run

    def agree(self, running: Served, state: str, *, a_look_says: str, stuck_s: float = 600.0) -> dict[str, Any]:
        """`a_look_says`: the state by `buffer-delta status`, which knows the queue, and no loader elsewhere.

        Returns the JSON.
        """
        before: dict[str, Any] = running.get("api/status")[1]
        page = self._browser.look(running.loader.url or "") if self._browser is not None else None
        code, health = running.get("healthz")
        metrics = running.get("metrics")[1]
        looked = self._run("status", "--store", running.loader.config.store, "--stuck-s", stuck_s, "--json").json()
        after: dict[str, Any] = running.get("api/status")[1]
        assert before["state"] == health["state"] == after["state"] == state
        assert f'state="{state}"}} 1.0' in metrics
        assert (code == 200) == before["healthy"]
        assert looked["state"] == a_look_says
        assert {key: looked[key] for key in ("next_sequence", "length")} == {
            key: before[key] for key in ("next_sequence", "length")
        }
        assert [t["committed"] for t in looked["tables"]] == [t["committed"] for t in before["tables"]]
        if page is not None:
            _check_page(page, before, after)
        return after


def _check_page(page: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """What the page shows lies between what the JSON said just before and just after: most of it is the same."""
    assert f">{before['state']}</span>" in page
    for fact in ("lag_batches", "lag_seconds", "backlog_bytes"):
        assert before[fact] <= float(shown(page, fact)[0]) <= after[fact], fact
    since = "seconds_since_commit"
    if before["loader"][since] is None:
        assert shown(page, since)[0] in ("null", "undefined")
    else:
        assert before["loader"][since] <= float(shown(page, since)[0]) <= after["loader"][since]
    for fact in ("commits", "rows", "retries", "dead_letters"):
        number = int(shown(page, fact)[1].replace(",", ""))
        assert before["loader"][fact] <= number <= after["loader"][fact], fact
    for table in before["tables"]:
        assert html.escape(table["table"], quote=False) in page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser | None]:
    """None where no Chromium is installed: the other views are compared all the same."""
    if find_chromium() is None:
        yield None
        return
    with running_browser() as found:
        yield found


@pytest.fixture
def views(browser: Browser | None, capfd: pytest.CaptureFixture[str]) -> Views:
    return Views(browser, InProcess(capfd, cli, "buffer-delta", EXIT_CODES))


@contextmanager
def served(spark: SparkSession, folder: Path, **settings: Any) -> Iterator[Served]:
    config = {
        "store": str(folder / "queue"),
        "table": str(folder / "table"),
        "format": {"type": "json", "schema": "id BIGINT"},
        "gc_enabled": False,
        "retry_max_s": 0.1,
        "serve": "127.0.0.1:0",
        "serve_linger_s": 600.0,
    }
    running = Served(spark, LoaderConfig(**{**config, **settings}))
    running.thread.start()
    try:
        yield running
    finally:
        running.loader.stop()
        running.thread.join()


def test_should_be_idle_once_all_is_loaded(spark: SparkSession, tmp_path: Path, views: Views) -> None:
    produce(tmp_path / "queue", [*numbered(3), [b'{"id": 30}', b"no JSON"]])
    dead = str(tmp_path / "dead")
    with served(spark, tmp_path, dead_letters=dead, max_batches_per_commit=2) as running:
        status = running.wait(lambda s: s["state"] == "idle" and s["loader"]["dead_letter_reasons"])
        assert running.get("healthz")[0] == running.get("readyz")[0] == 200
        loader = status["loader"]
        assert (loader["rows"], loader["dead_letters"], loader["retries"]) == (31, 1, 0)
        assert sum(loader["dead_letter_reasons"].values()) == 1
        assert [(c["first"], c["last"], c["rows"]) for c in loader["last_commits"]] == [(0, 1, 20), (2, 3, 11)]
        assert {t["table"]: t["committed"] for t in status["tables"]} == {str(tmp_path / "table"): 3, dead: 3}
        seen = queue_status(open_store(str(tmp_path / "queue")), data_path_prefix=None).to_dict()
        assert {key: status[key] for key in ("epoch", "next_sequence", "length", "lag_seconds")} == {
            key: seen[key] for key in ("epoch", "next_sequence", "length", "lag_seconds")
        }
        check_scrape(running.get("metrics")[1], ROOT / "ops")
        views.agree(running, "idle", a_look_says="idle")
    assert running.error is None


def test_should_answer_every_query_of_a_prometheus(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(3))
    with served(spark, tmp_path, max_batches_per_commit=2) as running:
        running.wait(lambda s: s["state"] == "idle")
        with running_prometheus(tmp_path / "prometheus", running.loader.url or "") as prometheus:
            check_queries(prometheus, ROOT / "ops")
            found = panels(prometheus, time.time(), 60.0)
            assert [panel.title for panel in found if not panel.is_found()] == []
            drawn = document(found, time.time() - 60.0, time.time())
            assert all(html.escape(panel.title) in drawn for panel in found)
            assert "<b>idle</b>" in drawn
    assert running.error is None


def test_should_say_blocked_while_it_lingers(spark: SparkSession, tmp_path: Path, views: Views) -> None:
    produce(tmp_path / "queue", numbered(2))
    batch = next((tmp_path / "queue" / "ingest").glob("*.batch"))
    batch.write_bytes(b"garbage")
    with served(spark, tmp_path, max_delivery_attempts=1) as running:
        status = running.wait(lambda s: s["state"] == "blocked")
        assert running.get("healthz")[0] == running.get("readyz")[0] == 503
        assert running.get("livez")[0] == 200
        views.agree(running, "blocked", a_look_says="blocked")
        assert status["loader"]["phase"] == "blocked"
        found = queue_status(open_store(str(tmp_path / "queue")), data_path_prefix=None)
        assert found.blocked is not None
    assert isinstance(running.error, Blocked)
    assert running.loader.url is None, "the server is gone with the loader"


def test_should_say_fenced_while_it_lingers(spark: SparkSession, tmp_path: Path, views: Views) -> None:
    store = str(tmp_path / "queue")
    produce(tmp_path / "queue", numbered(1))
    with served(spark, tmp_path, trigger_interval_s=0.1) as running:
        running.wait(lambda s: s["state"] == "idle")
        with Consumer.new(ConsumerConfig(store=store, gc_enabled=False)) as taker:
            status = running.wait(lambda s: s["loader"]["phase"] == "fenced")
            assert status["state"] == "fenced"
            assert running.get("healthz")[0] == running.get("readyz")[0] == 503
            assert running.get("livez")[0] == 200, "a restart would take the queue back from whoever has it now"
            views.agree(running, "fenced", a_look_says="idle")
            found = queue_status(open_store(store), data_path_prefix=None)
            assert found.epoch == taker.epoch > status["loader"]["epoch"]
    assert isinstance(running.error, Fenced)


def test_should_say_stuck_while_every_attempt_fails_and_idle_once_one_does_not(
    spark: SparkSession, tmp_path: Path, views: Views
) -> None:
    """A folder stands where a batch should be: the store fails, and no batch is to blame."""
    produce(tmp_path / "queue", numbered(1))
    batch = next((tmp_path / "queue" / "ingest").glob("*.batch"))
    hidden = batch.rename(tmp_path / "hidden")
    batch.mkdir()
    with served(spark, tmp_path, serve_stuck_s=0.5, max_delivery_attempts=1_000_000) as running:
        status = running.wait(lambda s: s["state"] == "stuck" and s["loader"]["retries"] > 1)
        assert running.get("healthz")[0] == running.get("readyz")[0] == running.get("livez")[0] == 503
        views.agree(running, "stuck", a_look_says="stuck", stuck_s=0.5)
        assert status["loader"]["phase"] in ("loading", "retrying")
        assert status["loader"]["error"] in status["reason"]
        found = queue_status(open_store(str(tmp_path / "queue")), data_path_prefix=None)
        assert (found.length, found.plan_state) == (1, "under way")
        assert found.plan is not None
        assert found.plan.attempts > 1
        batch.rmdir()
        hidden.rename(batch)
        running.wait(lambda s: s["state"] == "idle")
        views.agree(running, "idle", a_look_says="idle")
    assert running.error is None
