"""The calls of a description, compiled: filled, they are the ``Call`` that a transport performs.

What is wrong in a call comes to light when it is compiled. Nothing here reads a reply.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urljoin, urlsplit

from coatcheck.descriptor.finder import word_of
from coatcheck.descriptor.tables import CallTable, FetchTable
from coatcheck.descriptor.template import ABSENT, Resolve, Scope, Template, fill, templates_in, tree_of
from coatcheck.errors import ConfigError, ValidationError
from coatcheck.http import Call

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: What can be sent as a header: anything else ends it, or cannot be encoded.
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_LONGEST_TIMEOUT = timedelta(seconds=60)
_LARGEST_BODY = 2**31 - 1


def header_templates(headers: Mapping[str, str], scope: Scope, where: str) -> dict[str, Template]:
    """Compile a table of headers.

    Raises:
        ConfigError: a name cannot be one of a header, or a text cannot be read.
    """
    for name in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} cannot be the name of a header; write it like 'X-Api-Key'")
    return {name: Template.of(text, scope, f"{where}.{name}") for name, text in headers.items()}


def fill_headers(templates: Mapping[str, Template], resolve: Resolve) -> dict[str, str]:
    """Return the headers; those whose value is absent are left out.

    Raises:
        ValidationError: a value is missing, or cannot be sent in a header.
    """
    headers = {}
    for name, template in templates.items():
        value = template.text(resolve)
        if not isinstance(value, str):
            continue
        if not _HEADER_VALUE.fullmatch(value):
            # The value is not shown: it may be a secret.
            raise ValidationError(
                f"{template.where}: a header holds one line of Latin-1 text, found other characters", name
            )
        headers[name] = value
    return headers


class CallPlan:
    """One call, compiled.

    Args:
        table: the call.
        scope: what its placeholders may name.
        where: where it stands, for messages.
        call_limit: the hard limit of the step.

    Raises:
        ConfigError: the call is incomplete, or a text in it cannot be read.
    """

    def __init__(self, table: CallTable, scope: Scope, where: str, call_limit: timedelta) -> None:
        self.where = where
        self._table = table
        self._is_plain = isinstance(table, FetchTable) and table.plain
        if (table.path is None) == (table.url is None):
            found = "neither" if table.path is None else "both"
            raise ConfigError(
                f'{where} needs either path = "/…" (below base_url) or url = "…" (an address that the vendor '
                f"returned), found {found}"
            )
        self._path = None if table.path is None else _path_template(table.path, scope, f"{where}.path")
        self._url = None if table.url is None else _url_template(table.url, scope, f"{where}.url")
        self._headers = header_templates(table.headers, scope, f"{where}.headers")
        if "authorization" in map(str.lower, table.headers):
            raise ConfigError(
                f"{where}.headers: credentials stand in auth, like "
                'auth = { Authorization = "Bearer {secret}" }, and are looked up at each call'
            )
        self._query = tree_of(table.query, scope, f"{where}.query")
        self._json = tree_of(table.json, scope, f"{where}.json")
        if not 1 <= table.body_cap <= _LARGEST_BODY:
            raise ConfigError(f"{where}.body_cap must be a number of bytes from 1, found {table.body_cap}")
        self._timeout = min(call_limit / 2, _LONGEST_TIMEOUT) if table.timeout is None else table.timeout
        if not timedelta() < self._timeout <= call_limit:
            raise ConfigError(
                f"{where}.timeout must be positive and within the call_limit of {call_limit}, "
                f"found {self._timeout}"
            )

    @property
    def templates(self) -> Iterator[Template]:
        """Every template of the call."""
        for template in (self._path, self._url, *self._headers.values()):
            if template is not None:
                yield template
        yield from templates_in(self._query)
        yield from templates_in(self._json)

    def uses(self, *names: str) -> bool:
        """Whether the call has a placeholder that is one of ``names``, or a part of one."""
        holes = [hole.name for template in self.templates for hole in template.holes]
        return any(hole == name or hole.startswith(f"{name}.") for hole in holes for name in names)

    def call(self, resolve: Resolve, base_url: str, *, accept: Iterable[int] = ()) -> Call:
        """Return the call with every placeholder filled.

        Raises:
            ValidationError: a value is missing or does not fit.
        """
        return Call(
            self._table.method,
            self._address(resolve, base_url),
            headers=fill_headers(self._headers, resolve),
            query={name: _query_value(value) for name, value in fill(self._query, resolve).items()},
            json=_present(fill(self._json, resolve)),
            timeout=self._timeout,
            body_cap=self._table.body_cap,
            accept=accept,
            plain=self._is_plain,
        )

    def _address(self, resolve: Resolve, base_url: str) -> str:
        if self._path is not None:
            path = str(self._path.text(resolve, quoted=True))
            if any(segment in (".", "..") for segment in path.split("/")):
                raise ValidationError(f"{self._path.where}: a segment must be a name, found {path!r}", "path")
            return path
        assert self._url is not None  # noqa: S101  # narrows the type: one of the two is there
        whole = self._url.whole
        url = str(self._url.text(resolve, quoted=whole is None))
        # What a vendor returns may be relative to its own address.
        return urljoin(f"{base_url.rstrip('/')}/", url)


def _present(value: Any) -> Any:
    return None if value is ABSENT else value


def _query_value(value: Any) -> Any:
    """Return a value as it stands in a URL; ``True`` would become "True" there."""
    if isinstance(value, list):
        return [_query_value(item) for item in value]
    if isinstance(value, Mapping):
        raise ValidationError(
            "a query parameter must be a text, a number or a boolean, found a table", "query"
        )
    return word_of(value) if isinstance(value, bool) else value


def _path_template(text: str, scope: Scope, where: str) -> Template:
    template = Template.of(text, scope, where)
    literal = "".join(piece if isinstance(piece, str) else "x" for piece in template.pieces)
    if not literal.startswith("/") or literal.startswith("//") or re.search(r"[?#\s\\]", literal):
        raise ConfigError(
            f"{where} must begin with one / and hold no ?, # or blanks, found {text!r}; write what follows a "
            "? into query"
        )
    if any(segment in (".", "..") for segment in literal.split("/")):
        raise ConfigError(f"{where} must not hold . or .. as a segment, found {text!r}")
    _refuse_optional(template)
    return template


def _url_template(text: str, scope: Scope, where: str) -> Template:
    template = Template.of(text, scope, where)
    _refuse_optional(template)
    if template.whole is None:
        first = template.pieces[0] if template.pieces else ""
        parts = urlsplit(first) if isinstance(first, str) else None
        if parts is None or parts.scheme not in ("http", "https") or "/" not in parts.path:
            raise ConfigError(
                f"{where} must be one placeholder, like {{params.poll_url}}, or an absolute URL whose host "
                f"is written out, found {text!r}; write path for addresses below base_url"
            )
    return template


def _refuse_optional(template: Template) -> None:
    for hole in template.holes:
        if hole.is_optional:
            raise ConfigError(
                f"{template.where}: an address needs all of its parts, found {{{hole.name}?}}; drop the ?"
            )
