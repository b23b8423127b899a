"""What an annotation allows: a shape is the pair of functions that writes a value as JSON and reads it back.

A registered class inside a value is an envelope of its own, so it has a version of its own. The pairs are
made here, and not by a converter library, because they have to refuse exactly: "3" is no number and "ab" no
list.
"""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
import orjson
from attrs import field, frozen

from coatcheck.codec import walk as walks
from coatcheck.codec.allowed import Entry, by_class, by_name, decorate, place
from coatcheck.codec.walk import JSON_KINDS, Encoder, Refused, Walk, refuse
from coatcheck.errors import ConfigError

Decoder = Callable[[Any], Any]

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


class Named:
    """The kind of an envelope: a JSON object that says what it is."""


@frozen
class Shape:
    """How values of one annotation are written and read."""

    encode: Encoder
    decode: Decoder
    #: The JSON types that it is written as; for a registered class ``Named`` and the class.
    kinds: frozenset[type]
    #: Whether a value is its own JSON.
    is_plain: bool = False


@frozen
class Field:
    """One field of a registered class."""

    name: str
    alias: str
    shape: Shape
    default: Any

    def is_default(self, value: Any, owner: object) -> bool:
        """Whether ``value`` is what the field has when nothing is given."""
        default = self.default
        if default is attrs.NOTHING:
            return False
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function
            default = default.factory(owner) if default.takes_self else default.factory()
        return bool(value == default)


class _Unsupported(Exception):  # noqa: N818  # it never leaves this module
    """An annotation has no shape; ``path`` says where in the field it stands."""

    def __init__(self, found: str, fix: str, path: str = "") -> None:
        super().__init__(found)
        self.found, self.fix, self.path = found, fix, path


# Reading.


def exactly(*kinds: type) -> Decoder:
    """Return a decoder that passes on data of these types and no others."""

    def decode(data: Any) -> Any:
        if type(data) not in kinds:
            raise Refused(f"{type(data).__name__} where {kinds[-1].__name__} is expected")
        return data

    return decode


read_text, read_flag, read_whole = exactly(str), exactly(bool), exactly(int)
read_number, read_list, read_dict = exactly(int, float), exactly(list), exactly(dict)


def read_instant(data: Any) -> datetime:
    """Return an aware datetime in UTC."""
    found = datetime.fromisoformat(read_text(data))
    if found.tzinfo is UTC:
        return found
    if found.tzinfo is None:
        raise Refused("a naive datetime")
    return found.astimezone(UTC)


def _read_float(data: Any) -> float:
    return float(read_number(data))


def _read_seconds(data: Any) -> timedelta:
    return timedelta(seconds=read_number(data))


def _read_plain(data: Any) -> Any:
    return data


_ANY = Shape(walks.plain, _read_plain, JSON_KINDS, is_plain=True)
_NONE = Shape(walks.none, exactly(NoneType), frozenset({NoneType}), is_plain=True)
_SCALARS: dict[Any, Shape] = {
    Any: _ANY,
    object: _ANY,
    None: _NONE,
    NoneType: _NONE,
    bool: Shape(walks.flag, read_flag, frozenset({bool}), is_plain=True),
    int: Shape(walks.whole, read_whole, frozenset({int}), is_plain=True),
    float: Shape(walks.number, _read_float, frozenset({float}), is_plain=True),
    str: Shape(walks.text, read_text, frozenset({str}), is_plain=True),
    datetime: Shape(walks.instant, read_instant, frozenset({str})),
    timedelta: Shape(walks.seconds, _read_seconds, frozenset({int, float})),
}


# From annotations to shapes.


def _shape_of(annotation: Any, path: str = "") -> Shape:
    while True:  # other names for an annotation, and remarks on it
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            break
    try:
        scalar = _SCALARS.get(annotation)
    except TypeError:  # not hashable, so no type
        raise _Unsupported(repr(annotation), "annotate it with a type", path) from None
    if scalar is not None:
        return scalar
    origin = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if origin is Literal:
        return _literal(arguments, path)
    if origin in (Union, UnionType):
        return _union([_shape_of(argument, path) for argument in arguments], annotation, path)
    if not isinstance(origin, type):
        raise _Unsupported(str(annotation), "annotate it with a plain type", path)
    if origin is tuple and arguments and arguments[-1] is not ...:
        return _row([_shape_of(argument, f"{path}[{at}]") for at, argument in enumerate(arguments)])
    if origin in (list, tuple, Sequence):
        make = tuple if origin is tuple else list
        return _array(make, _shape_of(arguments[0] if arguments else Any, f"{path}[]"))
    if origin in (dict, Mapping):
        return _object(arguments or (str, Any), path)
    if issubclass(origin, Enum) and issubclass(origin, str | int):
        return _enum(origin)
    if origin in by_class:
        return _registered(origin)
    if attrs.has(origin):
        raise _Unsupported(f"the unregistered type {place(origin)}", decorate(origin), path)
    if issubclass(origin, bytes | bytearray | memoryview | os.PathLike | io.IOBase):
        raise _Unsupported(origin.__name__, "hold its URL or id instead, as a str", path)
    raise _Unsupported(
        origin.__name__,
        "use JSON scalars, list, tuple, dict, Literal, StrEnum, datetime, timedelta or registered classes",
        path,
    )


def _literal(choices: tuple[Any, ...], path: str) -> Shape:
    allowed = {(type(choice), choice) for choice in choices}
    kinds = frozenset(kind for kind, _ in allowed)
    if not kinds <= {str, int, bool, NoneType}:
        raise _Unsupported(
            "a Literal of other things than texts, whole numbers and booleans", "use an enum", path
        )
    shown = f"one of {', '.join(map(repr, choices))}"

    def decode(data: Any) -> Any:
        if type(data) not in kinds or (type(data), data) not in allowed:
            raise Refused("a value that is not allowed", f"pass {shown}")
        return data

    def encode(value: Any, walk: Walk) -> Any:
        return decode(str.__str__(value) if isinstance(value, str) else value)

    return Shape(encode, decode, kinds, is_plain=True)


def _enum(cls: type[Enum]) -> Shape:
    kind = str if issubclass(cls, str) else int
    check = exactly(kind)

    def encode(value: Any, walk: Walk) -> Any:
        if not isinstance(value, cls):
            refuse(value, walks.a(cls))
        return kind(value.value)

    def decode(data: Any) -> Any:
        return cls(check(data))

    return Shape(encode, decode, frozenset({kind}))


def _array(make: Callable[[list[Any]], Any], item: Shape) -> Shape:
    def encode(value: Any, walk: Walk) -> Any:
        if not isinstance(value, list | tuple):
            refuse(value, "a list or tuple")
        return walks.each(value, item.encode, walk)

    def decode(data: Any) -> Any:
        out: list[Any] = []
        read_list(data)
        try:
            for value in data:
                out.append(item.decode(value))  # noqa: PERF401  # the refusal needs to know how far it came
        except Refused as refused:
            raise refused.inside(f"[{len(out)}]") from None
        return make(out)

    return Shape(encode, decode, frozenset({list}))


def _row(shapes: list[Shape]) -> Shape:
    """A tuple of a fixed length."""

    def encode(value: Any, walk: Walk) -> Any:
        if not isinstance(value, list | tuple):
            refuse(value, f"a tuple of {len(shapes)}")
        if len(value) != len(shapes):
            raise Refused(f"a tuple of {len(value)}", f"pass a tuple of {len(shapes)}")
        pairs = iter(shapes)
        return walks.each(value, lambda item, walk: next(pairs).encode(item, walk), walk)

    def decode(data: Any) -> Any:
        if len(read_list(data)) != len(shapes):
            raise Refused(f"a list of {len(data)} where {len(shapes)} are expected")
        out: list[Any] = []
        try:
            for shape, value in zip(shapes, data, strict=True):
                out.append(shape.decode(value))  # the refusal needs to know how far it came
        except Refused as refused:
            raise refused.inside(f"[{len(out)}]") from None
        return tuple(out)

    return Shape(encode, decode, frozenset({list}))


def _object(arguments: tuple[Any, ...], path: str) -> Shape:
    key, item = arguments
    if key is not str:
        raise _Unsupported(f"a dict with keys of {key}", "JSON has texts as keys: use dict[str, …]", path)
    shape = _shape_of(item, f"{path}[]")

    def encode(value: Any, walk: Walk) -> Any:
        if not isinstance(value, Mapping):
            refuse(value, "a dict")
        return walks.items(value, shape.encode, walk)

    def decode(data: Any) -> Any:
        out = {}
        for name, value in read_dict(data).items():
            try:
                out[name] = shape.decode(value)
            except Refused as refused:
                raise refused.inside(f"[{name!r}]") from None
        return out

    return Shape(encode, decode, frozenset({dict}))


def _registered(cls: type) -> Shape:
    def encode(value: Any, walk: Walk) -> Any:
        if not isinstance(value, cls):
            refuse(value, walks.a(cls))
        return encode_instance(value, walk)

    def decode(data: Any) -> Any:
        value = open_envelope(data)
        if isinstance(value, RawValue):
            raise Refused(value.problem)
        if not isinstance(value, cls):
            raise Refused(f"{walks.a(type(value))} where {cls.__name__} is expected")
        return value

    return Shape(encode, decode, frozenset({Named, cls}))


def _union(members: list[Shape], annotation: Any, path: str) -> Shape:
    """Tell members apart by what they look like in JSON; registered classes tell themselves by their name."""
    for at, one in enumerate(members):
        for other in members[at + 1 :]:
            same = (one.kinds & other.kinds) - {Named} or ({Named, dict} <= one.kinds | other.kinds)
            if same and not (one.is_plain and other.is_plain):
                raise _Unsupported(
                    f"{annotation}, whose members look the same in JSON",
                    "make them one registered class",
                    path,
                )

    def encode(value: Any, walk: Walk) -> Any:
        depth = walk.depth
        best: Refused | None = None
        # A value of exactly a member's kind first: 1 stays a whole number in ``float | int``.
        for member in sorted(members, key=lambda member: type(value) not in member.kinds):
            try:
                return member.encode(value, walk)
            except Refused as refused:
                # The refusal that came from deepest inside is about the member that was meant.
                if best is None or len(refused.path) > len(best.path):
                    best = refused
                walk.depth = depth
        if best is None or (not best.path and best.found.endswith("is expected")):
            raise Refused(f"{walks.a(type(value))} where {annotation} is expected", f"pass {annotation}")
        raise best

    def decode(data: Any) -> Any:
        kind = type(data)
        looks = {kind, float} if kind is int else {kind, Named} if kind is dict else {kind}
        problem: Refused | None = None
        for member in sorted(members, key=lambda member: kind not in member.kinds):
            if looks & member.kinds:
                try:
                    return member.decode(data)
                except Refused as refused:
                    problem = problem or refused
        raise problem or Refused(f"{kind.__name__}, which fits no member of the union")

    kinds = frozenset[type]().union(*(member.kinds for member in members))
    return Shape(encode, decode, kinds, is_plain=all(member.is_plain for member in members))


def fields_of(entry: Entry) -> tuple[Field, ...]:
    """Return the fields of a registered class; found out once.

    Raises:
        NameError: an annotation names a class that is not defined yet.
        ConfigError: a field cannot be stored.
    """
    if entry.fields is None:
        entry.fields = tuple(_fields_of(entry.cls))
    return entry.fields


def _fields_of(cls: type) -> list[Field]:
    attrs.resolve_types(cls, localns={cls.__name__: cls})
    out = []
    for one in attrs.fields(cls):
        if not one.init:
            continue  # the class itself computes it again
        try:
            if one.type is None:
                raise _Unsupported("no annotation", "annotate it with a type")
            shape = _shape_of(one.type)
        except _Unsupported as error:
            where = f"{cls.__qualname__}.{one.name}{error.path}"
            raise ConfigError(f"{where} cannot be stored: found {error.found}; {error.fix}") from None
        out.append(Field(one.name, one.alias or one.name, shape, one.default))
    return out


# Envelopes.


def encode_instance(value: Any, walk: Walk) -> dict[str, Any]:
    """Return the envelope of an instance of a registered class."""
    entry = by_class.get(type(value))
    if entry is None:
        refuse(value)
    walk.down()
    data: dict[str, Any] = {}
    for one in fields_of(entry):
        held = getattr(value, one.name)
        if walk.lean and one.is_default(held, value):
            continue
        try:
            data[one.name] = one.shape.encode(held, walk)
        except Refused as refused:
            raise refused.inside(f".{one.name}") from None
    walk.depth -= 1
    if walk.lean:
        return {"type": entry.name, "data": data}
    return {"type": entry.name, "version": entry.version, "data": data}


def open_envelope(envelope: Any) -> Any:
    """Return the value of an envelope, or a ``RawValue`` where this process cannot restore it."""
    if (
        type(envelope) is not dict
        or type(name := envelope.get("type")) is not str
        or type(version := envelope.get("version")) is not int
        or "data" not in envelope
    ):
        raise Refused("something that is no envelope of type, version and data")
    data = envelope["data"]
    if name == PLAIN and version == 1:
        return data
    entry = by_name.get(name)
    if entry is None:
        problem = f"no type {name!r} is registered here; is its plugin installed?"
    elif version < 1:
        problem = f"{name!r} has no version {version}"
    elif version > entry.version:
        problem = (
            f"version {version} of {name!r} is newer than version {entry.version} here; upgrade its plugin"
        )
    else:
        try:
            return _restore(entry, version, data)
        except Refused as refused:
            problem = (
                f"stored {name!r} does not fit its class at {refused.path or 'the top'}: {refused.found}"
            )
    return RawValue(name, version, data, problem)


def _restore(entry: Entry, version: int, data: Any) -> Any:
    """Make an instance; whatever goes wrong in the code of a class or of an upcaster is a refusal."""
    try:
        if version < entry.version and entry.upcasters:
            data = dict(read_dict(data))  # a RawValue shows what was stored, not half of a change
            for step in range(version, entry.version):
                data = entry.upcasters[step](data) if step in entry.upcasters else data
        read_dict(data)
        arguments = {}
        for one in fields_of(entry):
            if one.name in data:
                arguments[one.alias] = _read_field(one, data[one.name])
            elif one.default is attrs.NOTHING:
                raise Refused("nothing, and there is no default").inside(f".{one.name}")
        return entry.cls(**arguments)
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001  # other people's code; one bad record must stop nothing (G10)
        raise Refused(f"something that its own code refuses ({type(error).__name__})") from None


def _read_field(one: Field, data: Any) -> Any:
    try:
        return one.shape.decode(data)
    except Refused as refused:
        raise refused.inside(f".{one.name}") from None
    except Exception as error:  # noqa: BLE001  # not an enum's or a date's; the error's text may hold the value
        problem = Refused(f"a value that is not allowed ({type(error).__name__})")
        raise problem.inside(f".{one.name}") from None
