"""The plugin that core itself brings: what it registers goes through the same door as everybody else's.

Stores and the transport stand above plugins, so they are named here and imported by whoever asks for one.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from coatcheck import selector
from coatcheck.errors import ConfigError, SelectorError, StoreConfigError
from coatcheck.hookspecs import hookimpl
from coatcheck.registry import Registry
from coatcheck.selector import Selector, SelectorContext
from coatcheck.store import Store

coatcheck_api = 1


@hookimpl
def coatcheck_register_selectors(registry: Registry) -> None:
    """Register the five selectors."""
    registry.add_selector("round_robin", selector.round_robin)
    registry.add_selector("random", selector.random)
    registry.add_selector("weighted", selector.weighted)
    registry.add_selector("consistent_hash", _consistent_hash)
    registry.add_selector("least_active", selector.least_active)


def _consistent_hash(
    key_of: Callable[[SelectorContext], str] | str, weights: Mapping[str, int] | None = None
) -> Selector:
    """Let a configuration file name what the key is read from: ``key_of = "options.tenant"``."""
    return selector.consistent_hash(_reader(key_of) if isinstance(key_of, str) else key_of, weights)


def _reader(path: str) -> Callable[[SelectorContext], str]:
    def key_of(context: SelectorContext) -> str:
        value: Any = context
        for name in path.split("."):
            try:
                value = value[name] if isinstance(value, Mapping) else getattr(value, name)
            except (KeyError, AttributeError):
                raise SelectorError(
                    f"key_of = {path!r} finds no {name!r} for a {context.request_type}; "
                    "name a field that is always set, like 'options.tenant' or 'request.url'"
                ) from None
        return str(value)

    return key_of


@hookimpl
def coatcheck_register_stores(registry: Registry) -> None:
    """Register the embedded store, in a file or in memory."""
    registry.add_store("sqlite", _open_sqlite)
    registry.add_store("memory", _open_memory)


def _open_sqlite(url: str, *, namespace: str = "default", ageing: timedelta | None = None) -> Store:
    path = url.partition("://")[2]
    if not path.startswith("/") or not path[1:]:
        raise StoreConfigError(
            f"expected sqlite:///file.db (in the working folder) or sqlite:////folder/file.db, found {url!r}",
            url,
        )
    return _sqlite(path[1:], namespace, ageing)


def _open_memory(url: str, *, namespace: str = "default", ageing: timedelta | None = None) -> Store:
    if url.partition("://")[2] not in {"", "/"}:
        raise StoreConfigError(
            f"expected memory://, found {url!r}; memory has no name, each store is a new one", url
        )
    return _sqlite(":memory:", namespace, ageing)


def _sqlite(path: str, namespace: str, ageing: timedelta | None) -> Store:
    store: Store = import_module("coatcheck.stores.sqlite").SqliteStore(
        path, namespace=namespace, ageing=ageing
    )
    return store


@hookimpl
def coatcheck_register_transports(registry: Registry) -> None:
    """Register the transports over requests, urllib3 and aiohttp."""
    registry.add_transport("requests", _open_requests)
    registry.add_transport("urllib3", _open_urllib3)
    registry.add_transport("aiohttp", _open_aiohttp)


def _open_requests() -> Any:
    return import_module("coatcheck.transport").RequestsTransport()


def _open_urllib3() -> Any:
    return import_module("coatcheck.transport").Urllib3Transport()


def _open_aiohttp() -> Any:
    try:
        return import_module("coatcheck.transport.over_aiohttp").AiohttpTransport()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "coatcheck":
            raise
        raise ConfigError(
            f"the transport over aiohttp needs aiohttp, found no {error.name}; "
            'install it with pip install "coatcheck[aiohttp]"'
        ) from error
