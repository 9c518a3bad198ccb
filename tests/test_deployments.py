"""The manifests, the crontab and the DAG in `examples/`: they parse, are careful, and call what our programs know."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from buffer.cli import cli as buffer
from buffer_delta.cli import cli as buffer_delta
from buffer_delta.config import LoaderConfig

EXAMPLES = Path(__file__).parent.parent / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
PROGRAMS: dict[str, click.Command] = {"buffer": buffer, "buffer-delta": buffer_delta}


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, found) for path in MANIFESTS for found in yaml.safe_load_all(path.read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, found in documents():
        spec = found.get("spec", {})
        template = spec.get("template") or spec.get("jobTemplate", {}).get("spec", {}).get("template")
        if template:
            yield f"{name}: {found['metadata']['name']}", template["spec"]


def accepted(call: list[str]) -> None:
    """Every option, and every value of it."""
    group = PROGRAMS[call[0]]
    assert isinstance(group, click.Group)
    with group.commands[call[1]].make_context(call[1], list(call[2:]), resilient_parsing=False):
        return


def test_should_be_manifests_that_kubernetes_knows() -> None:
    kinds = {(found["apiVersion"], found["kind"]) for _, found in documents()}
    assert kinds == {
        ("v1", "ConfigMap"),
        ("v1", "Service"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("batch/v1", "CronJob"),
    }
    for name, found in documents():
        assert found["metadata"]["name"], name
        selector = found.get("spec", {}).get("selector", {}).get("matchLabels")
        if selector:
            assert selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(("name", "pod"), list(pods()), ids=lambda value: value if isinstance(value, str) else "")
def test_should_run_without_root_and_call_what_is_there(name: str, pod: dict[str, Any], tmp_path: Path) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    mounted = {volume["name"] for volume in pod.get("volumes", [])}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        call = [
            re.sub(r"^/etc/buffer/buffer.toml$", str(config_file(tmp_path)), word) for word in container.get("args", [])
        ]
        if call and call[0] in PROGRAMS:
            accepted(call)
        elif call[:2] == ["sh", "-c"]:
            (line,) = re.findall(r"buffer produce .*?(?= \|\|)", call[2])
            accepted(shlex.split(line.replace("/var/log/shop", str(tmp_path))))
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                asked = container[probe]["httpGet"]
                assert asked["port"] in ports
                assert asked["path"] in ("/livez", "/readyz"), "the paths that restart or route are these"
        if "claims" not in name and not name.startswith("producer"):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= mounted


def config_file(folder: Path) -> Path:
    """The loader's settings, out of their ConfigMap."""
    (found,) = [found for _, found in documents() if found["kind"] == "ConfigMap"]
    text = found["data"]["buffer.toml"]
    config = LoaderConfig.from_dict(tomllib.loads(text)["loader"])
    assert config.serve == "0.0.0.0:9464"
    path = folder / "buffer.toml"
    path.write_text(text)
    return path


def test_should_never_run_two_loaders_at_once() -> None:
    for name, found in documents():
        if found["metadata"]["name"] == "buffer-loader" and found["kind"] == "Deployment":
            assert (found["spec"]["replicas"], found["spec"]["strategy"]) == (1, {"type": "Recreate"}), name
        if found["kind"] == "CronJob":
            assert found["spec"]["concurrencyPolicy"] == "Forbid"


def test_should_have_a_crontab_and_a_dag_whose_commands_are_known(tmp_path: Path) -> None:
    crontab = (EXAMPLES / "cron" / "crontab").read_text()
    (line,) = [line for line in crontab.splitlines() if line and not line.startswith("#")]
    (call,) = re.findall(r"buffer-delta load .*?(?= \|\|)", line)
    accepted(shlex.split(call.replace("/etc/buffer/buffer.toml", str(config_file(tmp_path)))))
    tree = ast.parse((EXAMPLES / "cron" / "airflow_dag.py").read_text())
    (load,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "LOAD"
    ]  # type: ignore[attr-defined]
    accepted([str(config_file(tmp_path)) if word.endswith(".toml") else word for word in load])
