"""docker-compose.yml, without Docker: it parses, is careful, and says only what our programs understand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from buffer.cli import cli as buffer
from buffer_delta.cli import cli as buffer_delta
from buffer_delta.cli.settings import loader_settings
from tests.nets import HANGS_S
from tests.servers import S3Server

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OTHERS = {"prometheus", "grafana"}
"""Images of others."""


def words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def pipeline(line: str) -> list[list[str]]:
    """The programs of a shell line, and what each is called with."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            calls.append([])
        elif word != "2>&1":
            calls[-1].append(word)
    return calls


def program_calls() -> list[tuple[str, list[str]]]:
    """Every call of a program, in a command or in a health check."""
    calls = []
    for name, service in SERVICES.items():
        if name in OTHERS:
            continue
        command, check = words(service["command"]), words(service.get("healthcheck", {}).get("test", ["NONE"]))
        found = pipeline(command[2]) if command[:2] == ["sh", "-c"] else [command]
        found += pipeline(check[1]) if check[0] == "CMD-SHELL" else [check[1:]]
        calls += [(name, call) for call in found if call]
    return calls


CALLS = program_calls()


def test_should_have_the_four_services_the_bucket_and_who_watches() -> None:
    assert set(SERVICES) == {"s3", "bucket", "producer", "loader", "jupyter", *OTHERS}
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"]) for name in OTHERS)


def test_should_listen_on_loopback_only() -> None:
    ports = [str(port) for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert not any("network_mode" in service for service in SERVICES.values())


def test_should_check_the_health_of_every_service_that_stays() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {"bucket"}


def test_should_start_in_an_order_in_which_all_is_there() -> None:
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert waits["bucket"] == {"s3": {"condition": "service_healthy"}}
    assert waits["producer"] == {"bucket": {"condition": "service_completed_successfully"}}
    assert waits["loader"] == {"producer": {"condition": "service_healthy"}}
    for named in waits.values():
        assert set(named) <= set(SERVICES)


def test_should_mount_only_volumes_that_are_declared() -> None:
    mounted = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in mounted if not name.startswith("./")} == set(COMPOSE["volumes"])
    for folder in (name for name in mounted if name.startswith("./")):
        assert (ROOT / folder).is_dir(), folder


def test_should_name_files_and_extras_that_exist() -> None:
    dockerfile = SERVICES["s3"]["build"]["dockerfile_inline"]
    for line in dockerfile.splitlines():
        if line.startswith("COPY"):
            for source in line.split()[2:-1]:
                assert (ROOT / source).exists(), source
    assert "'.[spark,serve]'" in dockerfile
    for extra in ("spark", "serve"):
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    assert all(service["build"] == SERVICES["s3"]["build"] for name, service in SERVICES.items() if name not in OTHERS)


@pytest.mark.parametrize(("service", "call"), CALLS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_should_call_only_programs_that_are_in_the_image(service: str, call: list[str]) -> None:
    assert call[0] in {"weed", "echo", "tee", "grep", "python", "buffer", "buffer-delta", "jupyter"}, service
    if call[0] in ("buffer", "buffer-delta"):
        command: click.Command = buffer if call[0] == "buffer" else buffer_delta
        assert isinstance(command, click.Group)
        with command.commands[call[1]].make_context(call[1], call[2:]):
            return  # every option and every value of it was accepted


def test_should_give_the_loader_settings_that_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = SERVICES["loader"]
    monkeypatch.setenv("BUFFER_STORE", loader["environment"]["BUFFER_STORE"])
    with buffer_delta.commands["load"].make_context("load", words(loader["command"])[2:]) as context:
        config = loader_settings(context.params)
    assert config.store == "s3://buffer/sensors"
    assert config.store_options == {"client_options": {"allow_http": True}}
    assert config.format["schema"] == "id BIGINT, sensor STRING, at_ms BIGINT, value DOUBLE"
    assert (config.serve, config.serve_max_lag_s) == ("0.0.0.0:9464", 120)
    (mount,) = loader["volumes"]
    assert config.table.startswith(mount.split(":")[1])


def test_should_give_the_s3_server_options_that_it_knows() -> None:
    weed = Path(sys.executable).with_name("weed")
    told = subprocess.run([weed, "server", "-h"], capture_output=True, text=True, timeout=30, check=False)
    known = set(re.findall(r"^\s+-([\w.]+)", told.stdout + told.stderr, re.MULTILINE)) | {"logtostderr"}
    command = words(SERVICES["s3"]["command"])
    asked = {word[1:].split("=")[0] for word in command[1:] if word.startswith("-")}
    assert len(known) > 50
    assert asked <= known


def test_should_produce_and_be_healthy_with_its_own_settings(s3_server: S3Server) -> None:
    """The producer and its health check as they stand there, but with the test's server behind the endpoint."""
    service = SERVICES["producer"]
    bucket = s3_server.new_bucket()
    environment = {
        **service["environment"],
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": s3_server.options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3_server.options["secret_access_key"],
        "BUFFER_STORE": f"s3://{bucket}/sensors",
    }
    assert set(environment) == set(service["environment"])
    command = [word.replace("s3://buffer/", f"s3://{bucket}/") for word in words(service["command"])]
    command[command.index("--for-ever")] = "--events=30"
    produced = run_here(command, environment)
    assert produced.returncode == 0, produced.stderr
    assert produced.stdout.count("30 events are durable") == 4
    healthy = run_here(words(service["healthcheck"]["test"])[1:], environment)
    assert healthy.returncode == 0, healthy.stderr


def run_here(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(command[0])
    return subprocess.run(
        [program, *command[1:]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


def test_should_scrape_the_loader_where_it_serves() -> None:
    scraping = yaml.safe_load((ROOT / "ops/prometheus/prometheus.yml").read_text())
    (job,) = scraping["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["loader:9464"]}]
    assert scraping["rule_files"] == ["/etc/prometheus/alerts.yml"]
    source = yaml.safe_load((ROOT / "ops/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((ROOT / "ops/grafana/provisioning/dashboards/buffer-delta.yml").read_text())
    assert boards["providers"][0]["options"]["path"] in str(SERVICES["grafana"]["volumes"])
