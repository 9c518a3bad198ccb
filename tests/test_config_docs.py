"""Defaults stand in the settings' classes alone: the page about them is written from there, and help texts agree."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import click
import pytest
from scripts.config_docs import PAGE, SETTINGS, attribute_docs, page, shown

from buffer.cli.app import cli as buffer_cli
from buffer.config import Config, GcConfig, ProducerConfig
from buffer_delta.cli.app import cli as delta_cli
from buffer_delta.config import LoaderConfig


def test_should_have_a_page_that_says_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python scripts/config_docs.py"


@pytest.mark.parametrize("cls", SETTINGS, ids=lambda cls: cls.__name__)
def test_should_explain_every_setting(cls: type[Config]) -> None:
    explained = {name for c in cls.__mro__ if dataclasses.is_dataclass(c) for name in attribute_docs(c)}
    assert set(cls.setting_names()) - explained == set()


def commands(group: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, group
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, f"{path} {name}")


SPOKEN = {"format_name": "format"}
"""Options that fill a setting of another name."""

CLASSES: dict[str, type[Config]] = {"buffer gc": GcConfig, "buffer-delta load": LoaderConfig}
"""Whose defaults a command shows; a producer's where it is not listed."""


def promises() -> Iterator[tuple[str, str, str, str]]:
    """Command, setting, the default that its help promises, the one that its class has."""
    for name, root in (("buffer", buffer_cli), ("buffer-delta", delta_cli)):
        for path, command in commands(root, name):
            defaults = {f.name: f.default for f in dataclasses.fields(CLASSES.get(path, ProducerConfig))}
            for option in command.params:
                help_text = getattr(option, "help", None) or ""
                promised = re.search(r"\[default: (.*)\]|At least (\d+), the default", help_text)
                setting = SPOKEN.get(option.name or "", option.name or "")
                if promised and defaults.get(setting) not in (None, "", dataclasses.MISSING):
                    yield path, setting, promised[1] or promised[2], shown(setting, defaults[setting])


def test_should_promise_the_defaults_that_hold() -> None:
    found = list(promises())
    assert {setting for _, setting, _, _ in found} >= {
        *("manifest_path", "compression", "flush_interval_ms", "flush_size_bytes"),
        *("gc_grace_s", "format", "trigger_interval_s"),
    }, "the help texts that this test knows of"
    assert [(path, setting, said) for path, setting, said, held in found if said != held] == []
