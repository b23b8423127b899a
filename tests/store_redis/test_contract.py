"""The Redis store keeps every rule of the contract and agrees with the model, on 6.2, on 7, in a cluster."""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.store_redis.servers import RedisCluster, RedisServer

from coatcheck.testing.clock import FakeClock
from coatcheck.testing.store_contract import MakeStore, StoreContract
from coatcheck.testing.store_machine import store_machine
from coatcheck_redis.store import RedisStore


def make(url: str) -> MakeStore:
    """Return a factory of stores whose namespaces no other test uses, whatever they are called."""
    prefix = f"t{secrets.token_hex(6)}"

    def open_store(
        *, clock: Callable[[], datetime], namespace: str = "default", ageing: timedelta | None = None
    ) -> RedisStore:
        store = RedisStore(url, namespace=f"{prefix}_{namespace}", ageing=ageing, clock=clock)
        store.namespace = namespace
        return store

    return open_store


def cluster_url(cluster: RedisCluster) -> str:
    """Return the URL of a cluster."""
    return f"redis+cluster://{','.join(f'{host}:{port}' for host, port in cluster.addresses)}"


class TestRedis6(StoreContract):
    """The oldest server that is supported."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_store(self, redis6: RedisServer) -> MakeStore:
        """Open a namespace of this test."""
        return make(redis6.url)


class TestRedis7(StoreContract):
    """The server of today."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_store(self, redis7: RedisServer) -> MakeStore:
        """Open a namespace of this test."""
        return make(redis7.url)


class TestRedisCluster(StoreContract):
    """Three nodes, and the namespace on one of them."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_store(self, redis_cluster: RedisCluster) -> MakeStore:
        """Open a namespace of this test."""
        return make(cluster_url(redis_cluster))


def run_machine(url: str, examples: int) -> None:
    """Drive a server through whole lives of tasks, beside the model."""

    def open_store(clock: FakeClock) -> RedisStore:
        return RedisStore(url, namespace=f"m{secrets.token_hex(6)}", clock=clock)

    # A run is many calls; how long they take is for the benchmarks to say.
    long_runs = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(store_machine(open_store), settings=long_runs)


def test_redis_7_agrees_with_the_model(redis7: RedisServer) -> None:
    """Whatever workers, users and operators do, in whatever order, rows and claims are those of the model."""
    run_machine(redis7.url, 100)


def test_redis_6_agrees_with_the_model(redis6: RedisServer) -> None:
    """The scripts do the same in the oldest server."""
    run_machine(redis6.url, 20)


def test_a_cluster_agrees_with_the_model(redis_cluster: RedisCluster) -> None:
    """The scripts do the same in a cluster."""
    run_machine(cluster_url(redis_cluster), 20)
