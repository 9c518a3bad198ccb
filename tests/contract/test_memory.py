"""Memory passes the contract; its names are shared within the process."""

from __future__ import annotations

import uuid

import pytest

from buffer.errors import InvalidConfig, ObjectNotFound
from buffer.store import Store, open_store
from buffer.testing.contract import StoreContract


class TestMemory(StoreContract):
    picklable = False

    @pytest.fixture
    def store(self) -> Store:
        return open_store("memory://")


class TestMemoryBelowPrefix(StoreContract):
    picklable = False

    @pytest.fixture
    def store(self) -> Store:
        name = uuid.uuid4().hex
        open_store(f"memory://{name}").put("pre fix#2/a", b"a neighbour")
        return open_store(f"memory://{name}/pre fix#/日本")


def test_should_share_a_named_store_within_the_process() -> None:
    name = f"memory://{uuid.uuid4().hex}"
    open_store(name).put("a", b"one")
    assert open_store(name).get("a").data == b"one"
    assert open_store(name + "/x").url == name + "/x"


def test_should_keep_unnamed_stores_apart() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    first.put("a", b"one")
    with pytest.raises(ObjectNotFound):
        second.get("a")


def test_should_refuse_options() -> None:
    with pytest.raises(InvalidConfig, match="region"):
        open_store("memory://x", region="eu-west-1")
