"""What a process knows by name: handlers, selectors, stores, transports, commands and sandboxes.

Names are unique and nothing is ever renamed or replaced in silence. The registry only remembers; who
registers, and what happens when that fails, is decided in ``coatcheck.plugins``. Types have their own
allow-list, in ``coatcheck.codec``.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

from attrs import frozen

from coatcheck import codec
from coatcheck.errors import ConfigError, DuplicateNameError, StoreConfigError, UnknownNameError
from coatcheck.handler import Resolved, resolve
from coatcheck.model import check_name
from coatcheck.selector import Selector
from coatcheck.store import Store

#: Makes a selector of the options that the configuration gives.
SelectorFactory = Callable[..., Selector]
#: Makes a store of a URL, ``namespace=`` and the options that the configuration gives.
StoreFactory = Callable[..., Store]
#: Makes a ``coatcheck.transport.Transport``; typed loosely because transports stand above the registry.
TransportFactory = Callable[..., Any]
#: Makes a ``coatcheck.sandbox.VendorSandbox``; typed loosely for the same reason.
SandboxFactory = Callable[..., Any]

HINT = "Is its plugin installed and loaded? See `coatcheck plugins`."


class Command(Protocol):
    """What the registry needs of a command; ``click.Command`` has it."""

    name: str | None


@frozen
class _Item:
    value: Any
    by: str


class Registry:
    """The names of one process. Registering is for its start; reading is safe from any thread."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, _Item]] = {
            kind: {} for kind in ("handler", "selector", "store", "transport", "command", "sandbox")
        }
        self._by = "application"
        #: Plugin name → why its names are missing, for messages.
        self._missing: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Registry: {', '.join(f'{len(items)} {kind}' for kind, items in self._items.items())}>"

    # Handlers.

    def add_handler(self, handler: object, *, by: str | None = None) -> Resolved:
        """Register a handler instance under its key.

        Args:
            handler: an instance of a subclass of ``TaskHandler[YourRequest]``.
            by: who registers it, for messages; by default the plugin that is being loaded, or "application".

        Raises:
            ConfigError: the handler is not well-formed, or its request type is unknown or cannot be stored;
                the message
                shows the override.
            DuplicateNameError: the key is taken.
        """
        resolved = resolve(handler)
        try:
            codec.check_type(resolved.params_type)
        except ConfigError as error:
            name = type(handler).__name__
            raise ConfigError(
                f"{name} accepts {resolved.params_type.__name__}, which cannot be stored: {error}; "
                f"or write params_type = … in {name}, if it accepts another type"
            ) from error
        self._add("handler", resolved.key, resolved, by)
        return resolved

    @property
    def handlers(self) -> Mapping[str, Resolved]:
        """All handlers by key; read-only."""
        return self._values("handler")

    def handler(self, key: str) -> Resolved:
        """Return the handler with this key.

        Raises:
            UnknownNameError: there is none; the message has the closest key and where it could come from.
        """
        found: Resolved = self._get("handler", key)
        return found

    def handlers_for(self, params_type: type) -> tuple[Resolved, ...]:
        """Return the handlers that accept exactly this type (no subclass, no base), sorted by key."""
        found = [
            item.value for item in self._items["handler"].values() if item.value.params_type is params_type
        ]
        return tuple(sorted(found, key=lambda resolved: resolved.key))

    # Selectors, stores, transports, commands, sandboxes.

    def add_selector(self, name: str, factory: SelectorFactory, *, by: str | None = None) -> None:
        """Register what makes a selector; its parameters are the options of the configuration.

        Raises:
            DuplicateNameError: the name is taken.
        """
        self._add_factory("selector", name, factory, by)

    def selector(self, name: str, **options: Any) -> Selector:
        """Make the selector with this name.

        Raises:
            UnknownNameError: no selector, or none of its options, has that name.
            ConfigError: an option is missing, or the selector refuses one (``SelectorError``).
        """
        made: Selector = self._make("selector", name, (), options)
        return made

    def add_store(self, scheme: str, factory: StoreFactory, *, by: str | None = None) -> None:
        """Register what opens the stores whose URLs begin with ``scheme://``.

        ``factory(url, *, namespace, **options)`` returns an open store.

        Raises:
            DuplicateNameError: the scheme is taken.
        """
        self._add_factory("store", scheme, factory, by)

    def open_store(self, url: str, *, namespace: str = "default", **options: Any) -> Store:
        """Open the store that a URL names; the caller closes it.

        Raises:
            StoreConfigError: not a URL, or the store cannot be opened with it.
            UnknownNameError: no store has that scheme, or none of its options has that name.
            StoreUnavailableError: the store does not answer.
        """
        scheme, colon, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
        if not scheme or not colon:
            known = ", ".join(f"{name}://" for name in sorted(self._items["store"]))
            # What was found is not shown: a URL may hold a password (G8).
            raise StoreConfigError(
                f"a store's URL must begin with one of {known}, found something else; "
                "write for instance sqlite:///tasks.db"
            )
        made: Store = self._make("store", scheme.lower(), (url,), {"namespace": namespace, **options})
        return made

    def add_transport(self, name: str, factory: TransportFactory, *, by: str | None = None) -> None:
        """Register what makes a transport.

        Raises:
            DuplicateNameError: the name is taken.
        """
        self._add_factory("transport", name, factory, by)

    def transport(self, name: str, **options: Any) -> Any:
        """Make the transport with this name; the caller closes it.

        Raises:
            UnknownNameError: no transport, or none of its options, has that name.
        """
        return self._make("transport", name, (), options)

    def add_command(self, command: Command, *, by: str | None = None) -> None:
        """Register a ``click.Command`` for the command line, under its own name.

        Raises:
            DuplicateNameError: the name is taken.
        """
        check_name(getattr(command, "name", None), "a command's name")
        self._add("command", str(command.name), command, by)

    @property
    def commands(self) -> Mapping[str, Any]:
        """All commands of plugins by name; read-only."""
        return self._values("command")

    def add_sandbox(self, name: str, factory: SandboxFactory, *, by: str | None = None) -> None:
        """Register what makes the local vendor of a handler, under the handler's key.

        Raises:
            DuplicateNameError: the name is taken.
        """
        self._add_factory("sandbox", name, factory, by)

    def sandbox(self, name: str, **options: Any) -> Any:
        """Make the sandbox with this name.

        Raises:
            UnknownNameError: no sandbox, or none of its options, has that name.
        """
        return self._make("sandbox", name, (), options)

    def names(self, kind: str) -> Mapping[str, str]:
        """Return the names of a kind ("handler", "selector", "store", …) and who registered them."""
        return MappingProxyType({name: item.by for name, item in sorted(self._items[kind].items())})

    # For the plugin loader.

    @contextmanager
    def registering(self, by: str, module: str = "") -> Iterator[None]:
        """Say who registers inside the block; if it fails, take back all that was registered, types too.

        Types of other modules that stay imported are kept: a plugin that loads later may share them, and
        would not register them again.

        Args:
            by: who, for messages.
            module: the plugin's own module.
        """
        before = {kind: dict(items) for kind, items in self._items.items()}
        types = codec.registered_types()
        outer, self._by = self._by, by
        try:
            yield
        except BaseException:
            self._items = before
            for name, cls in codec.registered_types().items():
                is_gone = cls.__module__ == module or cls.__module__ not in sys.modules
                if types.get(name) is not cls and is_gone:
                    codec.unregister(name)
            raise
        finally:
            self._by = outer

    def note_missing(self, plugin: str, why: str) -> None:
        """Remember why the names of a plugin ("ocr" for "ocr:…") are missing, for messages."""
        self._missing[plugin] = why

    def _add(self, kind: str, name: str, value: Any, by: str | None) -> None:
        by = by or self._by
        held = self._items[kind].get(name)
        if held is not None:
            raise DuplicateNameError.of(kind, name, held.by, by)
        self._items[kind] = {
            **self._items[kind],
            name: _Item(value, by),
        }  # readers keep the dict that they have

    def _add_factory(self, kind: str, name: str, factory: Any, by: str | None) -> None:
        check_name(name, f"a {kind}'s name")
        if not callable(factory):
            raise ConfigError(f"{kind} {name!r} needs a function that makes one, found {factory!r}")
        self._add(kind, name, factory, by)

    def _get(self, kind: str, name: str) -> Any:
        found = self._items[kind].get(name)
        if found is None:
            plugin = str(name).partition(":")[0]
            raise UnknownNameError.of(kind, name, self._items[kind], self._missing.get(plugin, HINT))
        return found.value

    def _values(self, kind: str) -> Mapping[str, Any]:
        return MappingProxyType({name: item.value for name, item in sorted(self._items[kind].items())})

    def _make(self, kind: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        factory = self._get(kind, name)
        try:
            signature = inspect.signature(factory)
        except ValueError:  # made in C; it checks its own arguments
            return factory(*arguments, **options)
        parameters = signature.parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            known = [
                parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY
            ]
            for option in options:
                if option not in known:
                    raise UnknownNameError.of(f"option of {kind} {name!r}", option, known[len(arguments) :])
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise ConfigError(f"{kind} {name!r} takes {signature}: {error}") from error
        return factory(*arguments, **options)
