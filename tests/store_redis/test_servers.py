"""The servers of the tests themselves: what a fault test does to them has to happen."""

from contextlib import closing
from pathlib import Path

import pytest
import redis
from tests.store_redis.servers import NO_RETRY, Proxy, RedisCluster, RedisSentinel, RedisServer


def test_the_oldest_and_a_newer_redis_are_tested(redis6: RedisServer, redis7: RedisServer) -> None:
    """Both ends of the supported range run: 6.2, and 7 or newer."""
    with redis6.client() as old, redis7.client() as new:
        assert old.info("server")["redis_version"].startswith("6.2.")
        assert int(new.info("server")["redis_version"].split(".")[0]) >= 7


def test_data_survives_a_kill_and_connections_can_be_cut(redis7: RedisServer, tmp_path: Path) -> None:
    """With every write in the file, a killed server comes back with all that it acknowledged, on its port."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(redis7.binary, tmp_path, *options) as server, server.client(retry=NO_RETRY) as client:
        client.set("kept", "yes")
        port = server.port
        server.restart(kill=True)
        assert server.port == port
        assert client.get("kept") == b"yes"
        connection = client.client_id()
        assert client.client_id() == connection
        server.cut()
        assert client.client_id() != connection


def test_a_frozen_server_answers_after_the_thaw(redis7: RedisServer) -> None:
    """A frozen server keeps its connections and says nothing."""
    with redis7.client(retry=NO_RETRY) as patient, redis7.client(socket_timeout=1, retry=NO_RETRY) as hasty:
        connection = patient.client_id()
        redis7.freeze()
        try:
            with pytest.raises(redis.TimeoutError):
                hasty.ping()
        finally:
            redis7.thaw()
        assert patient.client_id() == connection


def test_the_proxy_loses_the_reply_of_a_command_that_was_carried_out(redis7: RedisServer) -> None:
    """The client sees a broken connection although the server did what it was told."""
    with Proxy(redis7.port) as proxy, closing(redis.Redis(port=proxy.port, retry=NO_RETRY)) as client:
        assert client.set("proxied", "1")
        proxy.lose_reply(lambda data: b"INCR" in data)
        with pytest.raises(redis.ConnectionError):
            client.incr("proxied")
        assert (client.get("proxied"), proxy.lost) == (b"2", 1)


def test_the_cluster_spreads_its_slots_over_three_nodes(redis_cluster: RedisCluster) -> None:
    """Keys live on the node that ``node_of`` names, and all nodes have some."""
    with redis_cluster.client() as client:
        nodes = set()
        for number in range(30):
            client.set(f"key {number}", number)
            node = redis_cluster.node_of(f"key {number}")
            with node.client() as direct:
                assert direct.get(f"key {number}") == str(number).encode()
            nodes.add(node.port)
        assert nodes == {port for _, port in redis_cluster.addresses}


def test_the_sentinel_tells_the_master(redis_sentinel: RedisSentinel) -> None:
    """A client that asks the sentinel by name is sent to the server that it watches."""
    with redis_sentinel.client() as client:
        masters = client.sentinel_masters()
    assert (masters["coatcheck"]["ip"], masters["coatcheck"]["port"]) == (
        "127.0.0.1",
        redis_sentinel.master.port,
    )
