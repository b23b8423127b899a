"""The embedded store keeps every rule of the contract and agrees with the model, in files and in memory."""

import functools
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings

from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.store_contract import MakeStore, StoreContract
from coatcheck.testing.store_machine import store_machine


class TestSqliteFile(StoreContract):
    """A file, shared by all processes of a machine."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        """Open the file of this test."""
        return functools.partial(SqliteStore, str(tmp_path / "store.db"))


class TestSqliteMemory(StoreContract):
    """Memory, for one process and one handle."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Open new memory."""
        return functools.partial(SqliteStore, ":memory:")


def open_memory(clock: FakeClock) -> SqliteStore:
    """Open new memory."""
    return SqliteStore(":memory:", clock=clock)


class FileStore(SqliteStore):
    """A store in a file of its own, which goes when the store is closed."""

    def __init__(self, clock: FakeClock) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__(str(Path(self.folder.name) / "store.db"), clock=clock)

    def close(self) -> None:
        """Close the file and delete it."""
        super().close()
        self.folder.cleanup()


# A run is many calls; how long they take is for the benchmarks to say.
LONG_RUNS = settings(stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])

TestMemoryMachine = store_machine(open_memory).TestCase
TestMemoryMachine.settings = LONG_RUNS
TestFileMachine = store_machine(FileStore).TestCase
TestFileMachine.settings = LONG_RUNS

AGEING = timedelta(seconds=10)
TestAgeingMachine = store_machine(
    lambda clock: SqliteStore(":memory:", ageing=AGEING, clock=clock), ageing=AGEING
).TestCase
TestAgeingMachine.settings = settings(LONG_RUNS, max_examples=25)
