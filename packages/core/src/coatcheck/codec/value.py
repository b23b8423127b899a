"""Typed values: registering their classes, checking, writing and reading them."""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeVar

import orjson

from coatcheck.codec.allowed import Entry, Upcaster, by_class, by_name, decorate, place
from coatcheck.codec.shape import (
    PLAIN,
    UnresolvedError,
    fields_of,
    first_refusal,
    open_envelope,
    write_instance,
    write_plain,
)
from coatcheck.codec.walk import DATA, WALK, Refused, Walk, refuse
from coatcheck.errors import (
    ConfigError,
    DuplicateNameError,
    NotPersistableError,
    PayloadTooLargeError,
    StoreError,
    UnknownNameError,
)
from coatcheck.model import check_name, check_whole

C = TypeVar("C", bound=type)

#: The most bytes that each payload of a task may take.
CAPS: Mapping[str, int] = MappingProxyType(
    {
        "params": 256 * 1024,
        "metadata": 16 * 1024,
        "query_params": 16 * 1024,
        "result": 8 * 1024 * 1024,
        "error": 8 * 1024,
    }
)


def persistent(name: str, version: int = 1) -> Callable[[C], C]:
    """Register an attrs class under ``name``, so that its instances may be stored in a task.

    Written above the attrs decorator: ``@persistent("ocr.request")``, then ``@attrs.frozen``. The name and
    the meaning of the fields are kept for ever: raise ``version`` and write an ``upcast`` when a meaning
    changes; a new field with a default needs neither. Fields may be JSON scalars, lists, tuples, dicts with
    text keys, ``Literal``, enums of texts or whole numbers, aware datetimes, timedeltas, other registered
    classes, and unions of these. Defining the same class again (a notebook cell that is run twice) replaces
    it.

    Raises:
        ConfigError: not an attrs class, or one with a field that cannot be stored; the message has its path.
        DuplicateNameError: another class has the name.
    """
    check_name(name, "a type's name")
    check_whole(version, "a type's version", 1, 1_000_000)
    if name == PLAIN:
        raise ConfigError(
            f"the type name {PLAIN!r} stands for plain JSON; choose another, like 'vendor.request'"
        )

    def register(cls: C) -> C:
        if not isinstance(cls, type) or "__attrs_attrs__" not in cls.__dict__:
            raise ConfigError(
                f"@persistent({name!r}) needs an attrs class, found {cls!r}; "
                "write it above @attrs.frozen, so that attrs has done its work first"
            )
        held = by_name.get(name)
        if held is not None and place(held.cls) != place(cls):
            raise DuplicateNameError.of("type", name, held.cls, cls)
        if cls in by_class:
            raise ConfigError(
                f"{place(cls)} is registered already, as {by_class[cls].name!r}; drop one of the two"
            )
        entry = Entry(name, version, cls)
        by_class[cls] = entry  # before its fields are looked at: a type may hold itself
        try:
            fields_of(entry)
        except UnresolvedError:
            pass  # an annotation names a class further down in the module: looked at again at the first use
        except ConfigError:
            del by_class[cls]
            raise
        if held is not None:
            by_class.pop(held.cls, None)
        by_name[name] = entry
        return cls

    return register


def upcast(name: str, from_version: int = 1) -> Callable[[Upcaster], Upcaster]:
    """Register a function that turns stored data of ``from_version`` into data of the next version.

    Written below the class that it is for. A version without an upcaster passes its data on as they are;
    fields that are missing then take their defaults.

    Raises:
        UnknownNameError: no type has that name.
        ConfigError: the type has no later version.
        DuplicateNameError: there is one already.
    """
    entry = by_name.get(name)
    if entry is None:
        raise UnknownNameError.of("type", name, by_name, "Write the upcast below the class that it is for.")
    check_whole(from_version, "from_version", 1, 1_000_000)
    if from_version >= entry.version:
        raise ConfigError(
            f"an upcast of {name!r} must start below its version {entry.version}, found {from_version}; "
            f"write @persistent({name!r}, version={from_version + 1})"
        )

    def register(function: Upcaster) -> Upcaster:
        first = entry.upcasters.setdefault(from_version, function)
        if first is not function:
            raise DuplicateNameError.of("upcast", f"{name} from version {from_version}", first, function)
        return function

    return register


def check_type(cls: type) -> None:
    """Refuse a class whose instances cannot be stored: not registered, or with a field that cannot be stored.

    Raises:
        ConfigError: with the path of the field and the fix.
    """
    entry = by_class.get(cls)
    if entry is None:
        raise ConfigError(f"{place(cls)} is not persistent; {decorate(cls)}")
    fields_of(entry)


def encode_value(value: object, *, field: str, cap: int) -> bytes:
    """Return the envelope of a registered instance or of a plain JSON value.

    Args:
        value: what to store.
        field: what it is, for messages: "params", "result".
        cap: the most bytes that it may take; see ``CAPS``.

    Raises:
        NotPersistableError: it holds something that another machine could not restore; the message says
            where,
            and what to do.
        PayloadTooLargeError: it is over the cap.
    """
    data = orjson.dumps(_encode(value, Walk(), field, _write))
    if len(data) > cap:
        raise PayloadTooLargeError.of(field, len(data), cap)
    return data


def decode_value(data: bytes) -> Any:
    """Return the value of an envelope, or a ``RawValue`` where this process cannot restore it.

    Data of an older version go through the upcasters. Fields that are missing take their defaults; fields
    that are unknown are passed over, and the stored bytes keep them: params and results are never rewritten.

    Raises:
        StoreError: the bytes are no envelope.
    """
    try:
        return open_envelope(orjson.loads(data))
    except (ValueError, Refused) as error:
        raise StoreError(f"a stored value cannot be read: {error}") from error


def _encode(value: Any, walk: Walk, name: str, write: Callable[[Any], Any]) -> Any:
    token = WALK.set(walk)
    try:
        return write(value)
    except Exception as error:  # noqa: BLE001  # cattrs puts them in groups
        refused = first_refusal(error, name)
        if isinstance(refused.__cause__, ConfigError):  # a class, not a value, is at fault
            raise refused.__cause__ from None
        raise _not_persistable(refused) from None
    finally:
        WALK.reset(token)


def _write(value: Any) -> dict[str, Any]:
    if type(value) in by_class:
        return write_instance(value)
    return {"type": PLAIN, "version": 1, "data": write_plain(value)}


def _not_persistable(refused: Refused) -> NotPersistableError:
    return NotPersistableError(
        f"{refused.path} holds {refused.found}, which cannot be stored in a task; {refused.fix}",
        refused.path,
        refused.found,
    )


def check_request(value: object, *, local_files: bool, name: str = "request") -> None:
    """Refuse a request that another machine could not restore, at any depth.

    That is: open files, streams, binary data, paths of local files, clients, code, unregistered types, naive
    datetimes, numbers that are not finite, keys that are no texts, and nesting deeper than 64 levels. A text
    is the path of a local file if it begins like one ("/", "~/", "./", "../") and that file exists here.

    Args:
        value: the request, an instance of a registered class.
        local_files: whether ``file://`` URLs of readable files are allowed.
        name: what the path in the message begins with.

    Raises:
        NotPersistableError: the message says where and what to do; it never shows the value.
    """
    if type(value) not in by_class:
        try:
            refuse(value)
        except Refused as refused:
            if refused.fix == DATA:
                refused.fix = "pass an instance of a class with @persistent"
            raise _not_persistable(first_refusal(refused, name)) from None
    _encode(value, Walk(local_files=local_files), name, _write)


def check_plain(value: object, *, name: str, cap: int | None = None) -> Any:
    """Return a copy of a JSON value, made of dicts and lists, or refuse it.

    Raises:
        NotPersistableError: it holds something else than texts, finite numbers, booleans, None, lists and
            dicts
            with text keys.
        PayloadTooLargeError: it takes more than ``cap`` bytes.
    """
    copy = _encode(value, Walk(), name, write_plain)
    if cap is not None and (size := len(orjson.dumps(copy))) > cap:
        raise PayloadTooLargeError.of(name, size, cap)
    return copy


def request_digest(value: object) -> bytes:
    """Return 32 bytes that are equal for equal requests.

    They depend on the type's name and on the fields that differ from their defaults, so a new field with a
    default changes no digest.

    Raises:
        NotPersistableError: the request cannot be stored.
    """
    lean = _encode(value, Walk(lean=True), "request", _write)
    return blake2b(orjson.dumps(lean, option=orjson.OPT_SORT_KEYS), digest_size=32).digest()
