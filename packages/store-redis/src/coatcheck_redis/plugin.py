"""What this package registers with coatcheck: hook implementations only, no store code."""

from datetime import timedelta
from importlib import import_module

from coatcheck.hookspecs import hookimpl
from coatcheck.registry import Registry
from coatcheck.store import Store

coatcheck_api = 1

_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)


@hookimpl
def coatcheck_register_stores(registry: Registry) -> None:
    """Register Redis under all schemes of its URLs."""
    for scheme in _SCHEMES:
        registry.add_store(scheme, _open)


def _open(url: str, *, namespace: str = "default", ageing: timedelta | None = None) -> Store:
    # Only here, so that a process without a Redis store does not import redis-py.
    store: Store = import_module("coatcheck_redis.store").RedisStore(url, namespace=namespace, ageing=ageing)
    return store
