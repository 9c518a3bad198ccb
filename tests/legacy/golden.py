"""Real files of the older format, and damaged ones with the verdict of the implementation that wrote them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from buffer.legacy.format import KeyValueEntry

GOLDEN = Path(__file__).parents[1] / "golden" / "legacy"
FILES: list[dict[str, Any]] = json.loads((GOLDEN / "index.json").read_text())["files"]
T0_MS = 1_772_113_806_000
"""The clock's time when most of them were written or read."""

STATES = sorted({str(file["file"]).split("/")[0] for file in FILES if str(file["file"]).startswith(("state", "path"))})


def name_of(file: dict[str, Any]) -> str:
    return str(file["file"])


def read(file: dict[str, Any]) -> bytes:
    return (GOLDEN / file["file"]).read_bytes()


def pairs_of(expected: list[dict[str, Any]]) -> list[KeyValueEntry]:
    return [KeyValueEntry(_bytes_of(pair["key"]), _bytes_of(pair["value"])) for pair in expected]


def _bytes_of(expected: dict[str, Any]) -> bytes:
    if "base64" in expected:
        return base64.b64decode(expected["base64"])
    assert expected["pattern"] == "byte i = (i*31+7)%251"
    data = bytes((i * 31 + 7) % 251 for i in range(expected["len"]))
    assert hashlib.sha256(data).hexdigest() == expected["sha256"]
    return data


def store_of(state: str) -> dict[str, bytes]:
    """The objects of one state, by their keys in the store."""
    return {file["expect"]["key"]: read(file) for file in FILES if name_of(file).split("/")[0] == state}


def manifest_path_of(state: str) -> str:
    for file in FILES:
        if name_of(file).split("/")[0] == state and file["expect"]["object"] == "producer manifest":
            return str(file["expect"]["key"])
    raise AssertionError(f"{state} has no producer manifest")
