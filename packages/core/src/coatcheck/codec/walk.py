"""What may go into a store: the checks of every value on its way there.

A refusal says what a value is and where it lies, never what it holds: it may be a secret.
"""

import io
import math
import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import attrs
from attrs import define

from coatcheck.codec.allowed import decorate, is_persistent, place

#: How deep a value may be nested.
DEPTH = 64

UPLOAD = "upload it first and submit its URL or id"
DATA = "pass data: texts, numbers, lists, dicts, registered types"

#: The Python types of JSON values.
JSON_KINDS = frozenset[type]({NoneType, bool, int, float, str, list, dict})


class Refused(Exception):  # noqa: N818  # it never leaves coatcheck
    """A value cannot be stored, or stored data do not fit."""

    def __init__(self, found: str, fix: str = "", path: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.fix = fix
        self.path = path


class WrongKind(Refused):
    """A value is of another kind than its place wants; another member of a union may want it."""


@define
class Walk:
    """What one walk through a value carries."""

    #: Leave out versions and fields that are equal to their default: for digests.
    lean: bool = False
    #: Look at texts that name local files: refuse them all (false), or take readable ``file:`` URLs (true).
    local_files: bool | None = None
    depth: float = 0


#: The walk that is under way: cattrs hands its hooks a value and a type, and nothing else.
WALK: ContextVar[Walk] = ContextVar("walk")


def deeper(take: Callable[[Any], Any], value: Any) -> Any:
    """Return what ``take`` makes of the value, one level deeper."""
    walk = WALK.get()
    walk.depth += 1
    if walk.depth > DEPTH:
        # For good: cattrs goes on after a refusal, and what holds itself twice has 2**64 ways down.
        walk.depth = math.inf
        raise Refused(
            f"nesting deeper than {DEPTH} levels, or something that contains itself", "make it flatter"
        )
    try:
        return take(value)
    finally:
        walk.depth -= 1


def refuse(value: object, expected: str = "") -> NoReturn:
    """Refuse a value and say what to do; ``expected`` is what the place wants, if it wants one thing."""
    cls = type(value)
    name = cls.__name__
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused("a number that is not finite", "use None")
    if expected and (cls in JSON_KINDS or is_persistent(cls)):
        raise WrongKind(f"{a(cls)} where {expected} is expected", f"pass {expected}")
    if isinstance(value, bytes | bytearray | memoryview):
        raise Refused(f"binary data ({name})", UPLOAD)
    if isinstance(value, io.IOBase) or callable(getattr(cls, "read", None)):
        raise Refused(f"an open file or stream ({name})", UPLOAD)
    if isinstance(value, os.PathLike):
        raise Refused(f"the path of a local file ({name})", UPLOAD)
    if isinstance(value, type):
        raise Refused(f"the class {value.__name__}", "pass an instance; have you forgotten the ()?")
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise Refused("a naive datetime", "write datetime.now(UTC) or add tzinfo=")
    if is_persistent(cls):
        raise Refused(f"{a(cls)} inside plain data", f"annotate the field with {name}")
    if attrs.has(cls):
        raise Refused(f"an instance of the unregistered type {place(cls)}", decorate(cls))
    if isinstance(value, ModuleType | FunctionType | MethodType) or callable(value):
        raise Refused(f"code (a {name})", DATA)
    if callable(getattr(cls, "close", None)) or hasattr(cls, "__enter__"):
        raise Refused(f"a client or connection ({name})", "leave it to the handler and " + DATA)
    raise WrongKind(f"an instance of {place(cls)}", f"pass {expected}" if expected else DATA)


def a(cls: type) -> str:
    """Return a class's name with its article."""
    return f"{'an' if cls.__name__[0] in 'AEIOUaeiou' else 'a'} {cls.__name__}"


_FILE_URL = re.compile(r"\s*file:/", re.IGNORECASE)
_PATH_STARTS = ("/", "~/", "./", "../")


# The hooks of cattrs, which passes the type as well.


def only(kind: Any, expected: str, write: Callable[[Any], Any] = lambda value: value) -> Callable[..., Any]:
    """Return what writes values of one kind and refuses all others."""

    def hook(value: Any, _: object = None) -> Any:
        return write(value) if isinstance(value, kind) else refuse(value, expected)

    return hook


def _member(value: Any, cls: type[Enum]) -> Any:
    if not isinstance(value, cls):
        refuse(value, a(cls))
    return value.value


def text(value: Any, cls: Any = str) -> Any:
    """Return a text, or an enum of texts, as JSON holds it."""
    if cls is not str:
        return _member(value, cls)
    if not isinstance(value, str):
        refuse(value, "a text")
    plain = value if type(value) is str else str.__str__(value)
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise Refused(
                "a text that is not Unicode (a lone surrogate)", "decode it with errors='replace'"
            ) from None
    local_files = WALK.get().local_files
    if local_files is not None:
        _check_local(plain, local_files=local_files)
    return plain


def _check_local(value: str, *, local_files: bool) -> None:
    if _FILE_URL.match(value):
        if not local_files:
            raise Refused("the URL of a local file", UPLOAD)
        if not is_readable_file_url(value):
            raise Refused("the URL of a file that cannot be read here", "check its name and its permissions")
    elif value.startswith(_PATH_STARTS) and len(value) < 4096:
        path = os.path.expanduser(value)  # noqa: PTH111  # any text may come here
        if os.path.isfile(path):  # noqa: PTH113  # the same
            fix = "write it as a file:// URL" if local_files else UPLOAD
            raise Refused("the path of a local file", fix)


def is_readable_file_url(url: str) -> bool:
    """Whether ``url`` is a ``file:`` URL of a regular file that this process may read."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return False
    path = unquote(parts.path)
    return (
        parts.scheme == "file"
        and parts.netloc in ("", "localhost")
        and os.path.isfile(path)  # noqa: PTH113  # any text may come here
        and os.access(path, os.R_OK)
    )


def key(value: Any, _: object = str) -> Any:
    """Return the key of a dict as JSON holds it."""
    if not isinstance(value, str):
        raise Refused(f"a dict key of type {type(value).__name__}", "use texts as keys")
    return text(value)


def whole(value: Any, cls: Any = int) -> Any:
    """Return a whole number, or an enum of them, as JSON holds it."""
    if cls is not int:
        return _member(value, cls)
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(value, "a whole number")
    if not -(2**63) <= value < 2**63:
        raise Refused("a whole number of more than 64 bits", "pass it as a text")
    return int(value)


def number(value: Any, _: object = float) -> float:
    """Return a number as JSON holds it."""
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(value, "a number")
    return float(whole(value))


def instant(value: Any, _: object = datetime) -> str:
    """Return an aware datetime as JSON holds it: in UTC."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        refuse(value, "an aware datetime")
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:
        raise Refused("a datetime that UTC does not have", "use one of the years 2 to 9998") from None
