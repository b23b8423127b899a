"""Stores for the worker processes of fault tests, by URL."""

from importlib import import_module

from coatcheck.plugins import builtin
from coatcheck.registry import Registry
from coatcheck.store import Store


def open_store(url: str) -> Store:
    """Open a store; the caller closes it."""
    registry = Registry()
    builtin.coatcheck_register_stores(registry)
    if url.startswith("redis:"):
        # Only then: workers start often, and imports are what that costs.
        import_module("coatcheck_redis.plugin").coatcheck_register_stores(registry)
    return registry.open_store(url)
