"""The queries of dashboard and alert rules: each finds something in a scrape, and rules call for what they should."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from buffer.store import Store
from buffer.testing import ManualClock
from buffer_delta.config import LoaderConfig
from buffer_delta.delta.state import Commit, TableState
from buffer_delta.load.progress import Progress
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.load.telling import Telling
from tests.metrics_reader import value
from tests.promql import Selector, check_scrape, parsed
from tests.serve.serve_support import fenced, filled, get

OPS = Path(__file__).parents[2] / "ops"


class FakeProtocol:
    """As far as a loader's `Telling` asks it."""

    consumer, plan, epoch, app_id = None, None, 1, "buffer/01TEST"

    def __init__(self, table: str) -> None:
        self.table = table

    def tables(self) -> dict[str, TableState]:
        return {self.table: TableState(position=2, version=3)}


@contextmanager
def telling(store: Store, table: str, **settings: Any) -> Iterator[Telling]:
    """What a loader tells, without the loader: the counters are the real ones."""
    config = LoaderConfig(store=store, table=table, gc_enabled=False, **settings)
    made = Telling(config, store, ManualClock(), cast("LoadProtocol", FakeProtocol(table)), lambda *_: {})
    made.begin()
    made.opened()
    try:
        yield made
    finally:
        made.close()


def committed(one: Telling, table: str, rows: int = 10) -> None:
    done = Commit(version=3, rows=rows, files=1, bytes=1000, seconds=0.5, after=TableState(position=2, version=3))
    one.committed(Progress(0, 2, rows, 1, 1000, 1, 0.5, 0, 0.0, 1), {table: done})


def test_should_find_something_with_every_query_of_dashboard_and_rules(memory: Store) -> None:
    filled(memory, ManualClock())
    with telling(memory, "/lake/events", serve="127.0.0.1:0") as one:
        committed(one, "/lake/events")
        assert one.server is not None
        one.server.watch.look()
        code, _, body = get(one.server, "/metrics")
        assert code == 200
        check_scrape(body.decode(), OPS)
        with pytest.raises(AssertionError, match="finds nothing"):
            check_scrape(body.decode().replace("lag_seconds", "lagging_seconds"), OPS)
        with pytest.raises(AssertionError, match="no label"):
            check_scrape(body.decode().replace("table=", "tables="), OPS)


def test_should_read_of_a_query_what_it_looks_at() -> None:
    query = parsed('sum by (queue) (rate(buffer_a_total{queue=~".*", x!="y"}[5m])) > 3 or absent(buffer_b) == 1')
    assert query.grouped_by == {"queue"}
    assert query.selectors == (
        Selector("buffer_a_total", (("queue", "=~", ".*"), ("x", "!=", "y"))),
        Selector("buffer_b", ()),
    )
    first = query.selectors[0]
    assert first.matches("buffer_a_total", {"queue": "q"})
    assert not first.matches("buffer_a_total", {"queue": "q", "x": "y"})


@pytest.mark.parametrize("text", ["sum(buffer_a", "buffer_a)", "up", "frob(buffer_a)", "buffer_a{x}", "buffer_a; 1"])
def test_should_refuse_a_query_that_it_does_not_understand(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parsed(text)


def test_should_count_each_queue_apart(memory: Store, tmp_path: Path) -> None:
    from buffer.store.open import open_store

    other = open_store(str(tmp_path))
    names = [f"{store.url} ingest/manifest" for store in (memory, other)]
    counters = [f"buffer_delta.{name}" for name in ("commits", "bytes", "retries", "dead_letters", "fenced")]
    counters.append("buffer_delta.commit_duration_seconds")
    with telling(memory, "/lake/a") as one, telling(other, "/lake/b"):
        before = [[value(counter, {"queue": name}) for counter in counters] for name in names]
        committed(one, "/lake/a", rows=7)
        one.failed("it does not answer")
        one.fenced(fenced())
        after = [[value(counter, {"queue": name}) for counter in counters] for name in names]
        assert [b - a for a, b in zip(before[0], after[0], strict=True)] == [1, 1000, 1, 1, 1, 1]
        assert before[1] == after[1]
        assert value("buffer_delta.rows", {"queue": names[0], "table": "/lake/a"}) == 7
        assert value("buffer_delta.rows", {"queue": names[1], "table": "/lake/b"}) == 0


# The rules, in Prometheus's own tool for testing rules

QUEUE = "file:///q ingest/manifest"
CASES: dict[str, tuple[dict[str, str], str | None]] = {
    # series of one sample a minute -> the alert that fires after half an hour
    "cron every two minutes, seen by two": (
        {
            f'buffer_delta_epoch{{queue="{QUEUE}", instance="a"}}': "1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 "
            "12 12 13 13 14 14 15 15 16",
            f'buffer_delta_epoch{{queue="{QUEUE}", instance="b"}}': "1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 "
            "12 12 13 13 14 14 15 15 16",
            f'buffer_delta_state{{queue="{QUEUE}", state="fenced", instance="a"}}': "0x30",
        },
        None,
    ),
    "cron every minute": (
        {
            f'buffer_delta_epoch{{queue="{QUEUE}"}}': "1+1x30",
            f'buffer_delta_state{{queue="{QUEUE}", state="fenced"}}': "0x30",
        },
        None,
    ),
    "two that fence each other with a supervisor's back-off": (
        {
            f'buffer_delta_epoch{{queue="{QUEUE}"}}': "1 1 1 2 2 2 3 3 3 4 4 4 5 5 5 6 6 6 7 7 7 8 8 8 9 9 9 "
            "10 10 10 11",
            f'buffer_delta_state{{queue="{QUEUE}", state="fenced"}}': "0 0 1 0 0 1 0 0 1 0 0 1 0 0 1 0 0 1 0 0 1 0 0 1 "
            "0 0 1 0 0 0 0",
        },
        QUEUE,
    ),
    "one that was replaced once, by a deployment": (
        {
            f'buffer_delta_epoch{{queue="{QUEUE}"}}': "1x20 2x10",
            f'buffer_delta_state{{queue="{QUEUE}", state="fenced"}}': "0x20 1 0x10",
        },
        None,
    ),
}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool is installed, so the rules were not run")
    return found


@pytest.mark.parametrize("case", CASES)
def test_should_call_for_a_duel_and_not_for_cron(promtool: str, tmp_path: Path, case: str) -> None:
    given, fires = CASES[case]
    rule = next(
        rule
        for group in yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == "BufferDeltaDuel"
    )
    description, summary = rule["annotations"]["description"], f"{QUEUE} changes hands again and again"
    alert = {
        "exp_labels": {"severity": "page", "queue": fires},
        "exp_annotations": {"description": description, "summary": summary},
    }
    check_rules(
        promtool,
        tmp_path,
        given,
        alert_rule_test=[{"eval_time": "30m", "alertname": "BufferDeltaDuel", "exp_alerts": [alert] if fires else []}],
    )


def check_rules(promtool: str, folder: Path, given: dict[str, str], **expected: Any) -> None:
    """With these series, one sample a minute, the rules do what is expected."""
    series = [{"series": name, "values": values} for name, values in given.items()]
    test = {
        "rule_files": [str(OPS / "prometheus" / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, **expected}],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    command = [promtool, "test", "rules", str(folder / "test.yml")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


ALONE: dict[str, dict[str, str]] = {
    # the alert -> what a scrape finds, minute by minute, beside a loader that is fine
    "BufferDeltaDown": {},
    "BufferDeltaBlocked": {'buffer_delta_state{queue="q", state="blocked"}': "1x30"},
    "BufferDeltaStuck": {'buffer_delta_state{queue="q", state="stuck"}': "1x30"},
    "BufferDeltaFencedOrFailed": {'buffer_delta_state{queue="q", state="failed"}': "1x30"},
    "BufferDeltaUnreachable": {'buffer_delta_state{queue="q", state="unreachable"}': "1x30"},
    "BufferDeltaLag": {'buffer_delta_lag_seconds{queue="q"}': "901x30"},
    "BufferDeltaRetries": {'buffer_delta_plan_attempts{queue="q"}': "4x30"},
    "BufferDeltaDeadLetters": {'buffer_delta_dead_letters_total{queue="q"}': "0+100x30"},
    "": {
        **{f'buffer_delta_state{{queue="q", state="{s}"}}': "1x30" for s in ("idle", "loading", "retrying", "behind")},
        'buffer_delta_lag_seconds{queue="q"}': "899x30",
        'buffer_delta_plan_attempts{queue="q"}': "3x30",
        'buffer_delta_dead_letters_total{queue="q"}': "0+60x30",
    },
}


@pytest.mark.parametrize("alert", ALONE)
def test_should_call_for_each_fault_and_for_nothing_else(promtool: str, tmp_path: Path, alert: str) -> None:
    given = ALONE[alert] if alert == "BufferDeltaDown" else {'buffer_delta_healthy{queue="q"}': "1x30", **ALONE[alert]}
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    check_rules(
        promtool,
        tmp_path,
        given,
        promql_expr_test=[{"expr": expression, "eval_time": "30m", "exp_samples": firing}],
    )


def test_should_try_every_rule() -> None:
    rules = yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text())
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == {*ALONE, "BufferDeltaDuel"} - {""}
