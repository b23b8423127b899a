"""A Redis of its own for each fault test that asks for one: it is killed, frozen and filled up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.store_redis.servers import RedisServer, system_binary, wheel_binary


@pytest.fixture
def redis_server(missing: Callable[[str], NoReturn], tmp_path: Path) -> Iterator[RedisServer]:
    """A server that loses nothing that it acknowledged, even when it is killed."""
    binary = system_binary() or wheel_binary() or missing("redis-server: apt-get install redis-server")
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(binary, tmp_path / "redis", *options) as server:
        yield server
