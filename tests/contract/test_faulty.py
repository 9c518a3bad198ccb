"""Without faults, the fault-injecting store is as good as the one inside."""

from __future__ import annotations

import pytest

from buffer.store import Store, open_store
from buffer.testing import FaultyStore
from buffer.testing.contract import StoreContract


class TestFaultlessFaultyStore(StoreContract):
    picklable = False

    @pytest.fixture
    def store(self) -> Store:
        return FaultyStore(open_store("memory://"), seed=1, rate=0.0)
