"""The allow-list: which classes may be restored from stored data, by their registered names."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
from attrs import define, field

from coatcheck.errors import NotPersistableError

#: Turns stored data of one version into data of the next.
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


@define(eq=False)
class Entry:
    """One registered type."""

    name: str
    version: int
    cls: type
    #: By the version that they start from.
    upcasters: dict[int, Upcaster] = field(factory=dict)
    #: What is stored of the class, what reads it, and what it is written as; ``None`` until they are needed.
    fields: "tuple[attrs.Attribute[Any], ...] | None" = None
    read: Callable[[dict[str, Any]], Any] | None = None
    written: Any = None


by_name: dict[str, Entry] = {}
by_class: dict[type, Entry] = {}


def is_persistent(cls: object) -> bool:
    """Whether exactly this class is registered; a subclass needs a registration of its own."""
    return isinstance(cls, type) and cls in by_class


def type_name(cls: type) -> str:
    """Return the name that a class is stored under.

    Raises:
        NotPersistableError: it is not registered; the message shows the decorator.
    """
    entry = by_class.get(cls)
    if entry is None:
        raise NotPersistableError(f"{place(cls)} is not registered; {decorate(cls)}", "", place(cls))
    return entry.name


def registered_types() -> Mapping[str, type]:
    """Return the allow-list as it is now: name to class."""
    return MappingProxyType({name: entry.cls for name, entry in by_name.items()})


def unregister(name: str) -> None:
    """Take a type off the allow-list; for plugins that failed half-way. Repeatable."""
    entry = by_name.pop(name, None)
    if entry is not None:
        by_class.pop(entry.cls, None)


def place(cls: type) -> str:
    """Say where a class is, for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"


def decorate(cls: type) -> str:
    """Say how to register a class, for messages."""
    package = cls.__module__.partition(".")[0].strip("_")
    line = f'write @persistent("{package}.{cls.__name__.lower()}") above its @attrs.frozen'
    return line if attrs.has(cls) else f"make it an attrs class and {line}"
