"""Stores for fault tests: a Redis of its own for each test, to be killed, frozen and filled up, or a file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.store_redis.conftest import find_redis6, find_redis7
from tests.store_redis.servers import RedisServer, system_binary


@pytest.fixture
def redis_server(
    request: pytest.FixtureRequest, missing: Callable[[str], NoReturn], tmp_path: Path
) -> Iterator[RedisServer]:
    """A server that loses nothing that it acknowledged, even when it is killed.

    It is the system's, or else of 6.2; a test that is parametrized indirectly says which ("6.2", "7").
    """
    match getattr(request, "param", None):
        case "6.2":
            binary = find_redis6(missing)
        case "7":
            binary = find_redis7(missing)
        case _:
            binary = system_binary() or find_redis6(missing)
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(binary, tmp_path / "redis", *options) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that processes can share; the test runs with each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url
