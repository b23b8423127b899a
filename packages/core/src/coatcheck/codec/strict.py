"""What fields may be annotated with, and cattrs made strict about it.

To cattrs "3" is a number, ``True`` a 1 and "ab" a list, which no data of ours may be. Scalars are for the
hooks of whoever asks; attrs classes, Optional, NewType, Annotated and paths are left to cattrs.
"""

import io
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from itertools import combinations
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.cols import list_structure_factory
from cattrs.gen import make_hetero_tuple_structure_fn, make_mapping_structure_fn

from coatcheck.codec.allowed import by_class, decorate, place
from coatcheck.codec.walk import JSON_KINDS, Refused, WrongKind, a
from coatcheck.errors import ConfigError

#: What cattrs calls with a value and its type.
Hook = Callable[[Any, Any], Any]
#: What hands a list or a dict on to what takes its items, and refuses everything else.
Container = Callable[[Callable[[Any], Any], Any], Any]
#: The keys of dicts.
Key = NewType("Key", str)

_LISTS, _DICTS, _UNIONS = (list, tuple, Sequence), (dict, Mapping), (Union, UnionType)
_ALIASES = getattr(typing, "TypeAliasType", ())  # since Python 3.12
#: What is its own JSON, and other scalars.
_PLAIN = {kind: frozenset({kind}) for kind in JSON_KINDS - {list, dict}} | {object: JSON_KINDS}
_SCALARS = _PLAIN | {datetime: frozenset({str}), timedelta: frozenset({int, float})}


def origin_of(annotation: Any) -> Any:
    """Return what an annotation is made of: ``list`` for ``list[int]`` and for ``list``."""
    return get_origin(annotation) or annotation


def kinds(annotation: Any) -> frozenset[type]:
    """Return the JSON types that values are written as; a registered class stands for its envelope.

    Raises:
        ConfigError: they cannot be stored.
    """
    annotation = _bare(annotation)
    origin, arguments = origin_of(annotation), get_args(annotation)
    if origin is Literal:
        found = frozenset(map(type, arguments))
        if not found <= {str, int, bool, NoneType}:
            raise ConfigError(f"found {annotation}; use texts, whole numbers and booleans, or an enum")
        return found
    if origin in _UNIONS:
        return _kinds_of_union(annotation, arguments)
    if not isinstance(origin, type):
        raise ConfigError(f"found {'no annotation' if origin is None else origin!r}; annotate it with a type")
    if origin in _SCALARS:
        return _SCALARS[origin]
    if origin in _LISTS:
        for argument in arguments:
            if argument is not ...:
                kinds(argument)
        return frozenset({list})
    if origin in _DICTS:
        if arguments and _bare(arguments[0]) is not str:
            raise ConfigError(f"found {annotation}; JSON has texts as keys, so use dict[str, …]")
        for argument in arguments:
            kinds(argument)
        return frozenset({dict})
    if issubclass(origin, Enum) and issubclass(origin, str | int):
        return frozenset({str if issubclass(origin, str) else int})
    if origin in by_class:
        return frozenset({origin})
    if attrs.has(origin):
        raise ConfigError(f"found the unregistered type {place(origin)}; {decorate(origin)}")
    if issubclass(origin, bytes | bytearray | memoryview | os.PathLike | io.IOBase):
        raise ConfigError(f"found {origin.__name__}; hold its URL or id instead, as a str")
    raise ConfigError(
        f"found {origin.__name__}; use JSON scalars, list, tuple, dict, Literal, StrEnum, datetime, "
        "timedelta or registered classes"
    )


def _kinds_of_union(annotation: Any, members: tuple[Any, ...]) -> frozenset[type]:
    looks = [(kinds(one), _bare(one) in _PLAIN or get_origin(_bare(one)) is Literal) for one in members]
    for (one, is_plain), (other, other_is_plain) in combinations(looks, 2):
        both = one | other
        is_same = one & other or (dict in both and not both.isdisjoint(by_class))
        if is_same and not (is_plain and other_is_plain):
            raise ConfigError(
                f"found {annotation}, whose members look the same in JSON; make them one registered class"
            )
    return frozenset[type]().union(*(look for look, _ in looks))


def _bare(annotation: Any) -> Any:
    """Return what an annotation is another name for, without remarks on it."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif isinstance(annotation, _ALIASES):
            annotation = annotation.__value__
        else:
            return object if annotation is Any else annotation


def strict(hooks: Mapping[Any, Hook], *, in_list: Container, in_dict: Container) -> Converter:
    """Return a converter that structures exactly what annotations say.

    Args:
        hooks: those of scalars, of ``Key``, and of ``object``: all that is not looked at.
        in_list: lets lists through.
        in_dict: lets dicts through.
    """
    converter = Converter()
    generic: Any = GenericAlias

    def array(annotation: Any) -> Hook:
        make = tuple if origin_of(annotation) is tuple else list
        items = get_args(annotation) or (object, ...)
        if make is tuple and items[-1] is not ...:
            row = make_hetero_tuple_structure_fn(annotation, converter)
            return lambda value, _: in_list(lambda values: row(_of_length(len(items), values), _), value)
        # cattrs does not look at the items of list[Any].
        take: Any = list_structure_factory(generic(list, _bare(items[0])), converter)
        return lambda value, _: make(in_list(take, value))

    def mapping(annotation: Any) -> Hook:
        _, item = get_args(annotation) or (str, object)
        take: Any = make_mapping_structure_fn(generic(dict, (Key, item)), converter)
        return lambda value, _: in_dict(take, value)

    def union(annotation: Any) -> Hook:
        # Floats come last, because they take whole numbers as well.
        members = sorted(get_args(annotation), key=lambda member: _bare(member) is float)
        return _first_of([(member, converter.get_structure_hook(member)) for member in members], annotation)

    def is_union(kind: Any) -> bool:
        members = get_args(kind)  # cattrs has a hook for "this or None"
        return origin_of(kind) in _UNIONS and not (len(members) == 2 and NoneType in members)

    for kind, hook in hooks.items():
        if kind is object:
            converter.register_structure_hook_func(lambda kind: kind in (Any, object), hook)
        else:
            converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_factory(lambda kind: origin_of(kind) in _LISTS, array)
    converter.register_structure_hook_factory(lambda kind: origin_of(kind) in _DICTS, mapping)
    converter.register_structure_hook_factory(lambda kind: origin_of(kind) is Literal, _one_of)
    converter.register_structure_hook_factory(is_union, union)
    return converter


def _of_length(length: int, row: Any) -> Any:
    if len(row) != length:
        found = f"{a(type(row))} of {len(row)} where {length} are expected"
        raise Refused(found, f"pass a tuple of {length}")
    return row


def _one_of(annotation: Any) -> Hook:
    """Look for a literal, and compare the types as well."""
    choices = get_args(annotation)
    allowed = {(type(choice), choice) for choice in choices}

    def hook(value: Any, _: Any) -> Any:
        value = str.__str__(value) if isinstance(value, str) else value
        if not isinstance(value, str | int | None) or (type(value), value) not in allowed:
            raise WrongKind("a value that is not allowed", f"pass one of {', '.join(map(repr, choices))}")
        return value

    return hook


def _first_of(members: list[tuple[Any, Hook]], annotation: Any) -> Hook:
    """Take the first member that fits; cattrs knows classes only, and tells them apart by their fields."""

    def hook(value: Any, _: Any) -> Any:
        problem: Exception | None = None
        for member, take in members:
            try:
                return take(value, member)
            except WrongKind:
                continue
            except Exception as error:  # noqa: BLE001  # about the member that was meant, if no other one fits
                problem = problem or error
        raise problem or WrongKind(f"{a(type(value))} where {annotation} is expected", f"pass {annotation}")

    return hook
