"""Azure passes the contract on Azurite, where npm can install it."""

from __future__ import annotations

import pytest

from buffer.errors import StoreUnusable
from buffer.store import Store, open_store
from buffer.testing.contract import StoreContract
from tests.servers import AzureServer

pytestmark = pytest.mark.xdist_group("azure")  # one server for all of them


class TestAzure(StoreContract):
    @pytest.fixture
    def store(self, azure_server: AzureServer) -> Store:
        return azure_server.new_address().open()


def test_should_name_the_container_when_it_is_missing(azure_server: AzureServer) -> None:
    store = open_store("az://no-such-container", **azure_server.options)
    for call in (lambda: store.get("a"), lambda: store.put("a", b"x"), lambda: store.put_if_absent("a", b"x")):
        with pytest.raises(StoreUnusable, match=r"container of az://no-such-container does not exist"):
            call()
