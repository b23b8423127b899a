"""Values as JSON and back, by the annotations of their classes: one cattrs converter for each direction.

``WRITER`` *structures* too, into what JSON holds, because unstructuring checks nothing and knows no paths. A
registered class inside a value is an envelope of its own, so it has a version of its own.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, NoneType
from typing import Any, TypeAlias, TypedDict

import attrs
import orjson
from attrs import field, frozen
from cattrs import transform_error
from cattrs.gen import make_dict_structure_fn

from coatcheck.codec import walk
from coatcheck.codec.allowed import Entry, by_class, by_name, place
from coatcheck.codec.strict import Key, kinds, strict
from coatcheck.codec.walk import WALK, Refused, WrongKind, a, refuse
from coatcheck.errors import ConfigError

#: A field of a registered class.
Field: TypeAlias = "attrs.Attribute[Any]"
#: The type name of values without a class: plain JSON.
PLAIN = "json"


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Read JSON.

    Raises:
        ValueError: it is not JSON.
    """
    return orjson.loads(data)


def dumps(value: Any) -> bytes:
    """Write JSON; read-only mappings are written like dicts, aware datetimes as texts, enums by value.

    Raises:
        TypeError: the value holds something else.
    """
    return orjson.dumps(value, default=unfrozen)


def unfrozen(value: Any) -> Any:
    """Return a read-only mapping as a dict: what orjson asks for where it cannot go on."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


@frozen
class RawValue:
    """A stored value that this process cannot restore; what was stored stays as it is."""

    type: str
    version: int
    data: Any = field(repr=False)
    #: Why: an unknown type, a newer version, or data that do not fit the class.
    problem: str = ""


# Reading.


def exactly(*allowed: type) -> Callable[..., Any]:
    """Return what passes on data of these types and no others, or makes of them what the hook is for."""

    def read(data: Any, cls: Any = None) -> Any:
        if type(data) not in allowed:
            raise WrongKind(f"{type(data).__name__} where {allowed[-1].__name__} is expected")
        try:
            return data if cls is None else cls(data)
        except ValueError:
            choices = ", ".join(repr(one.value) for one in cls)
            raise Refused("a value that is not allowed", f"pass one of {choices}") from None

    return read


read_text, read_flag, read_whole = exactly(str), exactly(bool), exactly(int)
read_number, read_list, read_dict = exactly(int, float), exactly(list), exactly(dict)
_read_none = exactly(NoneType)


def read_instant(data: Any, _: object = datetime) -> datetime:
    """Return an aware datetime in UTC."""
    found = datetime.fromisoformat(read_text(data))
    if found.tzinfo is UTC:
        return found
    if found.tzinfo is None:
        raise Refused("a naive datetime")
    return found.astimezone(UTC)


def _read_registered(data: Any, cls: Any) -> Any:
    return _restore(*_parts(data), cls)


# Writing.


def write_plain(value: Any, _: object = object) -> Any:
    """Return a copy of a JSON value, made of dicts and lists."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return walk.text(value)
    if isinstance(value, int):
        return walk.whole(value)
    if isinstance(value, float):
        return walk.number(value)
    if isinstance(value, Mapping):
        return WRITER.structure(value, dict)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):  # a named tuple would lose them
        return WRITER.structure(value, list)
    return refuse(value)


_sequence, _mapping = walk.only(list | tuple, "a list or tuple"), walk.only(Mapping, "a dict")


def _write_registered(value: Any, cls: Any) -> dict[str, Any]:
    if not isinstance(value, cls):
        refuse(value, a(cls))
    return write_instance(value)


# Both.

READER = strict(
    {str: read_text, int: read_whole, float: read_number, bool: read_flag, datetime: read_instant}
    | {NoneType: lambda data, _: _read_none(data), object: lambda data, _: data}
    | {timedelta: lambda data, _: timedelta(seconds=read_number(data)), Key: lambda data, _: read_text(data)},
    in_list=lambda take, data: take(read_list(data)),
    in_dict=lambda take, data: take(read_dict(data)),
)
WRITER = strict(
    {str: walk.text, int: walk.whole, float: walk.number, bool: walk.only(bool, "True or False")}
    | {NoneType: walk.only(NoneType, "None"), object: write_plain, Key: walk.key, datetime: walk.instant}
    | {timedelta: walk.only(timedelta, "a timedelta", timedelta.total_seconds)},
    in_list=lambda take, value: walk.deeper(take, _sequence(value)),
    in_dict=lambda take, value: walk.deeper(take, _mapping(value)),
)
READER.register_structure_hook_func(by_class.__contains__, _read_registered)
WRITER.register_structure_hook_func(by_class.__contains__, _write_registered)


def first_refusal(error: Exception, top: str = "$") -> Refused:
    """Return the first thing that a converter could not take, with its path below ``top``."""
    leaves: list[Refused] = []

    def keep(leaf: BaseException, kind: Any) -> str:
        if not isinstance(leaf, Refused):
            # Its text may hold the value, so only its class is told.
            found = "a value that is not allowed" if kind else "something that its own code refuses"
            found = f"{found} ({type(leaf).__name__})"
            cause, leaf = leaf, Refused("nothing" if kind and isinstance(leaf, KeyError) else found)
            leaf.__cause__ = cause
        leaves.append(leaf)
        return ""

    leaves[0].path = transform_error(error, top, keep)[0].removeprefix(" @ ")
    return leaves[0]


# Registered classes.


class UnresolvedError(ConfigError):
    """An annotation names something that is not defined, or not yet."""


def fields_of(entry: Entry) -> tuple[Field, ...]:
    """Return the fields of a registered class that are stored; found out once.

    Raises:
        ConfigError: a field cannot be stored.
        UnresolvedError: what an annotation names is not defined yet.
    """
    if entry.fields is None:
        cls = entry.cls
        try:
            attrs.resolve_types(cls, localns={cls.__name__: cls})
        except NameError as error:
            raise UnresolvedError(
                f"{place(cls)}: an annotation cannot be resolved ({error}); import or define that name"
            ) from error
        fields = tuple(one for one in attrs.fields(cls) if one.init)  # the class makes the others again
        for one in fields:
            try:
                kinds(one.type)
            except ConfigError as error:
                raise ConfigError(f"{cls.__qualname__}.{one.name} cannot be stored: {error}") from None
        entry.fields = fields
    return entry.fields


def read_field(one: Field, data: Any) -> Any:
    """Return the value of a field.

    Raises:
        Refused: the data do not fit; its path begins inside the field.
    """
    try:
        return READER.get_structure_hook(one.type)(data, one.type)
    except Exception as error:  # noqa: BLE001  # cattrs puts them in groups
        raise first_refusal(error, "") from None


def write_instance(value: Any) -> dict[str, Any]:
    """Return the envelope of an instance of a registered class."""
    entry = by_class.get(type(value))
    if entry is None:
        refuse(value)
    fields, lean = fields_of(entry), WALK.get().lean
    held = {one.name: getattr(value, one.name) for one in fields if not (lean and _is_default(one, value))}
    if entry.written is None:
        make: Any = TypedDict  # with fields that are known at run time only
        entry.written = make(entry.cls.__name__, {one.name: one.type for one in fields}, total=False)
    data = walk.deeper(lambda held: WRITER.structure(held, entry.written), held)
    return {"type": entry.name} | ({} if lean else {"version": entry.version}) | {"data": data}


def _is_default(one: Field, owner: object) -> bool:
    """Whether a field is as it is when nothing is given."""
    default: Any = one.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function
        default = default.factory(owner) if default.takes_self else default.factory()
    return bool(getattr(owner, one.name) == default)


def open_envelope(envelope: Any) -> Any:
    """Return the value of an envelope, or a ``RawValue`` where this process cannot restore it.

    Raises:
        Refused: it is no envelope.
    """
    name, version, data = _parts(envelope)
    if name == PLAIN and version == 1:
        return data
    try:
        return _restore(name, version, data)
    except Exception as error:  # noqa: BLE001  # other people's code; one bad record must stop nothing (G10)
        refused = first_refusal(error)
        return RawValue(name, version, data, f"{refused.path}: {refused.found}")


def _parts(envelope: Any) -> tuple[str, int, Any]:
    if (
        type(envelope) is not dict
        or type(name := envelope.get("type")) is not str
        or type(version := envelope.get("version")) is not int
        or "data" not in envelope
    ):
        raise WrongKind("something that is no envelope of type, version and data")
    return name, version, envelope["data"]


def _restore(name: str, version: int, data: Any, expected: type = object) -> Any:
    entry = by_name.get(name)
    if entry is None:
        raise Refused(f"no type {name!r} is registered here; is its plugin installed?")
    if not issubclass(entry.cls, expected):  # before the data are read: each member of a union tries
        raise WrongKind(f"{a(entry.cls)} where {expected.__name__} is expected")
    if not 1 <= version <= entry.version:
        raise Refused(
            f"version {version} of {name!r}, of which versions 1 to {entry.version} are known here; "
            "upgrade its plugin"
        )
    data = dict(read_dict(data))  # a RawValue shows what was stored, not half of a change
    for step in range(version, entry.version):
        if step in entry.upcasters:
            try:
                data = read_dict(entry.upcasters[step](data))
            except Exception as error:  # noqa: BLE001  # its text may hold the value
                raise Refused(f"something that its own code refuses ({type(error).__name__})") from None
    if entry.read is None:
        fields_of(entry)
        entry.read = make_dict_structure_fn(entry.cls, READER)
    return entry.read(data)
