"""Fixtures of the worker's tests."""

from collections.abc import Callable, Iterator

import pytest
from tests.worker import house
from tests.worker.house import Handler, House


@pytest.fixture
def build() -> Iterator[Callable[..., House]]:
    """Return what makes a house; its store is closed after the test."""
    made: list[House] = []

    def make(*handlers: Handler, **options: object) -> House:
        made.append(house.build(*(handlers or (Handler(),)), **options))  # type: ignore[arg-type]  # passed through
        return made[-1]

    yield make
    for one in made:
        one.store.close()
