"""Reads what a person typed after ``coatcheck submit`` into an instance of a registered request type."""

import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from coatcheck import codec
from coatcheck.cli.app import refuse
from coatcheck.codec.allowed import by_class
from coatcheck.codec.shape import Field, fields_of, read_field
from coatcheck.codec.walk import Refused
from coatcheck.errors import CoatcheckError, UnknownNameError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def request_type(name: str) -> type:
    """Return the registered type called ``name``.

    Raises:
        UnknownNameError: no plugin registered it.
    """
    types = codec.registered_types()
    if name not in types:
        raise UnknownNameError.of(
            "request type", name, types, "coatcheck handlers lists what is installed here."
        )
    return types[name]


def read_request(cls: type, words: Iterable[str]) -> Any:
    """Return an instance of ``cls`` made of ``words``.

    Each word is a JSON object, ``@file`` or ``-`` (standard input) with one, ``name=value``, or a URL for the
    field that takes one; later words win. A value is a text where the field takes texts, else JSON.

    Raises:
        ValidationError: a word, a field or a value is not allowed.
        UnknownNameError: a field has no such name.
    """
    fields = {one.name: one for one in fields_of(by_class[cls])}
    values: dict[str, Any] = {}
    for word in words:
        values.update(_read_word(word, cls, fields))
    for one in fields.values():
        if one.default is attrs.NOTHING and one.name not in values:
            refuse(f"{codec.type_name(cls)} needs {one.name}=…; its fields are {', '.join(fields)}", one.name)
    try:
        return cls(**{fields[name].alias or name: value for name, value in values.items()})
    except CoatcheckError:
        raise
    except Exception as error:  # noqa: BLE001  # a validator is other people's code, and its text is for the user
        refuse(f"{codec.type_name(cls)} refuses these values: {error}")


def _read_word(word: str, cls: type, fields: Mapping[str, Field]) -> dict[str, Any]:
    if _URL.match(word):
        one = _url_field(cls, fields)
        return {one.name: _read_text(one, word)}
    if pair := _PAIR.fullmatch(word):
        name, text = pair.groups()
        return {name: _read_text(_known(name, fields), text)}
    if word == "-":
        return _read_object(sys.stdin.read(), "standard input", fields)
    if word.startswith("@"):
        try:
            return _read_object(Path(word[1:]).read_text("utf-8"), word[1:], fields)
        except (OSError, UnicodeDecodeError) as error:
            refuse(f"{word[1:]} cannot be read: {error}")
    if word.lstrip().startswith("{"):
        return _read_object(word, "the argument", fields)
    if Path(word).exists():
        refuse(
            f"{word} is a local file; upload it and pass its URL, pass {Path(word).absolute().as_uri()} to a "
            f"handler that reads local files, or @{word} if it holds the request as JSON"
        )
    return refuse(f'expected name=value, a URL, {{"json": …}}, @file or -, found {word!r}')


def _known(name: str, fields: Mapping[str, Field]) -> Field:
    if name not in fields:
        raise UnknownNameError.of("field", name, fields)
    return fields[name]


def _url_field(cls: type, fields: Mapping[str, Field]) -> Field:
    """Return the field for a bare URL: ``url``, the only ``…url``, or the only required one."""
    named = [one for one in fields.values() if re.fullmatch(r"(.*_)?urls?", one.name)]
    required = [one for one in fields.values() if one.default is attrs.NOTHING]
    for choice in ([one for one in named if one.name == "url"], named, required):
        if len(choice) == 1:
            return choice[0]
    return refuse(
        f"{codec.type_name(cls)} has no single field for a URL; write name=URL, with one of the names "
        f"{', '.join(fields)}"
    )


def _read_object(text: str, where: str, fields: Mapping[str, Field]) -> dict[str, Any]:
    try:
        data = codec.loads(text)
    except ValueError as error:
        refuse(f"{where} is not JSON: {error}")
    if not isinstance(data, dict):
        refuse(f"{where} must hold a JSON object, found a {type(data).__name__}")
    return {name: _decode(_known(name, fields), value) for name, value in data.items()}


def _read_text(one: Field, text: str) -> Any:
    """Read a typed value: as it stands, else as JSON, else as the only item of a list."""
    tries: list[Any] = [text]
    with suppress(ValueError):
        tries.append(codec.loads(text))
    tries.append([text])
    for data in tries:
        try:
            return read_field(one, data)
        except Refused:
            continue
    return _decode(one, tries[-2])


def _decode(one: Field, data: Any) -> Any:
    try:
        return read_field(one, data)
    except Refused as refused:
        fix = f"; {refused.fix}" if refused.fix else ""
        refuse(f"{one.name}{refused.path}: found {refused.found}{fix}", one.name)
