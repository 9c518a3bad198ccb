"""A real Prometheus, where there is one, that scrapes a server; and our queries against it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.nets import HANGS_S

_SELECTOR = re.compile(r"\b(buffer_[a-z_]+)(\{[^}]*\})?")


@contextmanager
def running_prometheus(folder: Path, url: str) -> Iterator[str]:
    """Its own URL, once it has scraped twice. Skips the test where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus is installed, so the queries were not run")
    folder.mkdir()
    (folder / "prometheus.yml").write_text(
        f"scrape_configs: [{{job_name: buffer-delta, scrape_interval: 1s, "
        f"static_configs: [{{targets: ['{urlsplit(url).netloc}']}}]}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        while not _scraped(address):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def _scraped(address: str) -> bool:
    try:
        return bool(query(address, "count_over_time(buffer_delta_lag_seconds[1m]) >= 3"))
    except (urllib.error.URLError, ConnectionError):
        return False  # it is still starting


def query(address: str, text: str) -> list[Any]:
    data = urllib.parse.urlencode({"query": text}).encode()
    with urllib.request.urlopen(f"{address}/api/v1/query", data, timeout=HANGS_S) as answer:
        found: dict[str, Any] = json.load(answer)
    assert found["status"] == "success", found
    return list(found["data"]["result"])


def dashboard_queries(ops: Path) -> list[str]:
    board = json.loads((ops / "grafana" / "dashboards" / "buffer-delta.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    # What Grafana puts in for its variables.
    return [q.replace("$__rate_interval", "1m").replace('"$queue"', '".*"') for q in found]


def rule_queries(ops: Path) -> list[str]:
    rules = yaml.safe_load((ops / "prometheus" / "alerts.yml").read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def check_queries(address: str, ops: Path) -> None:
    """The dashboard's queries find something; so does every selector of the rules, which find nothing themselves."""
    queries, rules = dashboard_queries(ops), rule_queries(ops)
    assert len(queries) >= 8
    assert len(rules) >= 5
    for text in queries:
        assert query(address, text), f"the dashboard's query finds nothing: {text}"
    for text in rules:
        query(address, text)  # it is a query
        selectors = {name + (labels or "") for name, labels in _SELECTOR.findall(text)}
        assert selectors, f"the rule looks at nothing: {text}"
        for selector in selectors:
            assert query(address, selector), f"a rule looks at what is not there: {selector} in {text}"
    # Only now may one of these be true: a loader that has just loaded all of it.
    firing = [text for text in rules if query(address, text)]
    assert not firing, f"rules that would call somebody for a loader that is fine: {firing}"
