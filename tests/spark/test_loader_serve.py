"""A real loader, served: what page, health and metrics are made of is what it did."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer.inspect.status import queue_status
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.errors import Blocked
from buffer_delta.load.loader import Loader
from tests.prometheus import check_queries, running_prometheus
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
            with urllib.request.urlopen(f"{self.loader.url}{path}", timeout=60) as answer:
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


def test_should_be_idle_once_all_is_loaded_and_answer_every_query(spark: SparkSession, tmp_path: Path) -> None:
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
        text = running.get("metrics")[1]
        assert 'buffer_delta_rows_total{otel_scope_name="buffer_delta"' in text
        with running_prometheus(tmp_path / "prometheus", running.loader.url or "") as prometheus:
            check_queries(prometheus, ROOT / "ops")
    assert running.error is None


def test_should_say_blocked_while_it_lingers(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(2))
    batch = next((tmp_path / "queue" / "ingest").glob("*.batch"))
    batch.write_bytes(b"garbage")
    with served(spark, tmp_path, max_delivery_attempts=1) as running:
        status = running.wait(lambda s: s["state"] == "blocked")
        assert running.get("healthz")[0] == running.get("readyz")[0] == 503
        assert running.get("livez")[0] == 200
        assert "blocked" in running.get("healthz")[1]["state"]
        assert 'state="blocked"} 1.0' in running.get("metrics")[1]
        assert status["loader"]["phase"] == "blocked"
        found = queue_status(open_store(str(tmp_path / "queue")), data_path_prefix=None)
        assert found.blocked is not None
    assert isinstance(running.error, Blocked)
    assert running.loader.url is None, "the server is gone with the loader"
