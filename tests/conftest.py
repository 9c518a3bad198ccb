"""Fixtures that all tests share: stores of every kind, and the servers behind them (started when first needed)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from buffer.store import Store
from buffer_delta.config import WRITERS
from tests.servers import AzureServer, S3Server, StoreAddress, Unavailable, run_azure_server, run_s3_server

pytest.register_assert_rewrite("buffer.testing.contract")
hypothesis.settings.register_profile("no clock", deadline=None)  # a busy machine fails no test
hypothesis.settings.load_profile("no clock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--writer", choices=WRITERS, help="of the loaders under test, where they are not told: see docs")


STORE_KINDS = ("memory", "local", "s3")
NEAR_KINDS = ("memory", "local")
SHARED_KINDS = ("local", "s3")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server. It comes with the dev dependencies, so a run where it does not start fails."""
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """A real Azure Blob server, where npm can install one."""
    folder = tmp_path_factory.mktemp("azure")
    try:
        running = run_azure_server(folder)
        server = running.__enter__()
    except Unavailable as reason:
        pytest.skip(f"Azure was left out: {reason}")
    yield server
    running.__exit__(None, None, None)


@pytest.fixture
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], StoreAddress]:
    """`store_factory(kind)` is the address of a new, empty store: "memory", "local" or "s3"."""

    def make(kind: str) -> StoreAddress:
        name = uuid.uuid4().hex
        if kind == "memory":
            return StoreAddress(f"memory://{name}")
        if kind == "local":
            return StoreAddress(str(tmp_path / f"store-{name}"))
        assert kind == "s3", f"no store kind {kind!r}"
        server: S3Server = request.getfixturevalue("s3_server")  # only now: memory tests start no server
        return server.new_address()

    return make


@pytest.fixture
def memory(store_factory: Callable[[str], StoreAddress]) -> Store:
    """A new, empty memory store: for what does not depend on the store."""
    return store_factory("memory").open()


@pytest.fixture(params=NEAR_KINDS)
def store(request: pytest.FixtureRequest, store_factory: Callable[[str], StoreAddress]) -> Store:
    """A new, empty store, once for each kind that needs no server."""
    return store_factory(request.param).open()


@pytest.fixture(params=STORE_KINDS)
def any_address(request: pytest.FixtureRequest, store_factory: Callable[[str], StoreAddress]) -> StoreAddress:
    """URL and options of a new, empty store, once for each kind."""
    return store_factory(request.param)


@pytest.fixture
def any_store(any_address: StoreAddress) -> Store:
    """A new, empty store, once for each kind."""
    return any_address.open()


@pytest.fixture(params=SHARED_KINDS)
def shared_address(request: pytest.FixtureRequest, store_factory: Callable[[str], StoreAddress]) -> StoreAddress:
    """Like `any_address`, but only kinds that several processes can open."""
    return store_factory(request.param)
