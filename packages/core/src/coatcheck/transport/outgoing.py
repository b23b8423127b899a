"""A call as it goes out: signed, its URL and headers checked, its body encoded. The same for every client.

Whatever is found out here is found out before anything is sent. Nothing here does I/O but reading the files
that a body is made of.
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from attrs import define, field, frozen

from coatcheck import codec
from coatcheck.errors import CoatcheckError, NotSentError
from coatcheck.http import Call, Part
from coatcheck.http.address import check_host

_USER_AGENT = f"coatcheck/{version('coatcheck')}"
#: What clients send along; the call's own headers come over these.
_HEADERS = {"User-Agent": _USER_AGENT, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
#: The names of headers that clients or bodies bring: a call's own takes their place, however it is spelt.
_OURS = {name.lower(): name for name in (*_HEADERS, "Content-Type")}
_URL = re.compile(r"(https?)://([^/?#]+)([^?#]*)(\?[^#]*)?", re.IGNORECASE)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_A_VALUE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
#: What ``quote`` leaves alone in a whole URL: all that has a meaning there, and what is quoted already.
_IN_URL = "%/:=&?~#+!$,;'@()*[]"
_CHUNK = 64 * 1024
#: Methods and names of headers that were looked at before; they are always the same few.
_good_names: set[str] = set()
_NAMES_KEPT = 1000


@frozen
class Origin:
    """Where a call goes."""

    #: ``scheme://host[:port]`` as written, for proxies and pools.
    url: str
    scheme: str
    host: str
    port: int


@define(eq=False)
class Outgoing:
    """A call as it goes out; nothing changes it, but a frozen class would cost more than the rest of it."""

    method: str
    url: str = field(repr=False)
    origin: Origin
    #: Path and query.
    target: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    body: "bytes | Stream | None" = field(repr=False)


class Stream:
    """A body in pieces, some of them files; every ``chunks`` begins anew."""

    def __init__(self, pieces: list[bytes | IO[bytes]]) -> None:
        self._pieces = pieces
        self.length = sum(_length(piece) for piece in pieces)

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole body."""
        for piece in self._pieces:
            if isinstance(piece, bytes):
                yield piece
            else:
                piece.seek(0)
                while chunk := piece.read(_CHUNK):
                    yield chunk


def _length(piece: bytes | IO[bytes]) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.seek(0, 2)


def prepare(call: Call) -> Outgoing:
    """Return the call as it goes out, signed.

    Raises:
        NotSentError: it cannot be written as HTTP; nothing was sent.
        UnsafeUrlError: it is guarded, and its host is an address that is not public.
        CoatcheckError: whatever ``sign`` raised of these.
    """
    try:
        if call.sign is not None:
            call = call.sign(call)
        url, origin, target = _split(full_url(call))
        if call.guarded:
            check_host(origin.host)
        body, content_type = _body(call)
        headers = dict(_HEADERS)
        if content_type is not None:
            headers["Content-Type"] = content_type
        for name, value in call.headers.items():
            headers[_OURS.get(name.lower(), name)] = value
        if body is not None:
            headers["Content-Length"] = str(body.length if isinstance(body, Stream) else len(body))
        _check_head(call.method, headers)
    except CoatcheckError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing was sent
        # Only the type: the text may hold the URL with a token in it.
        raise NotSentError(
            f"{call!r} cannot be written as HTTP ({type(error).__name__}); check its URL and headers",
            code="bad_call",
        ) from None
    return Outgoing(call.method, url, origin, target, headers, body)


def _check_head(method: str, headers: Mapping[str, str]) -> None:
    # Without this it is found out when the connection is open, and looks as if something had been sent.
    for name in (method, *headers):
        if name not in _good_names:
            if not _NAME.fullmatch(name):
                raise ValueError("method or name of a header")
            if len(_good_names) < _NAMES_KEPT:
                _good_names.add(name)
    values = "".join(headers.values())
    # The first two are quick and nearly always true.
    if not (values.isascii() and values.isprintable()) and _NOT_IN_A_VALUE.search(values):
        raise ValueError("value of a header")


def _split(url: str) -> tuple[str, Origin, str]:
    match = _URL.match(url)
    if match is None:
        raise ValueError("URL")
    scheme, netloc, path, query = match.groups()
    origin = _origin(scheme.lower(), netloc)
    target = (path or "/") + (query or "")
    if not target.isascii():
        target = quote(target, safe=_IN_URL)
    return origin.url + target, origin, target


@lru_cache(maxsize=1024)
def _origin(scheme: str, netloc: str) -> Origin:
    parts = urlsplit(f"{scheme}://{netloc}")
    host = parts.hostname
    if not host or "@" in netloc:
        raise ValueError("host")
    if not host.isascii():
        host = host.encode("idna").decode()
    port = parts.port or (443 if scheme == "https" else 80)
    shown = f"[{host}]" if ":" in host else host
    return Origin(f"{scheme}://{shown}" + (f":{parts.port}" if parts.port else ""), scheme, host, port)


def full_url(call: Call) -> str:
    """Return the call's URL with its query."""
    if not call.query:
        return call.url
    pairs = [(name, value) for name, value in call.query.items() if value is not None]
    if not pairs:
        return call.url
    return f"{call.url}{'&' if '?' in call.url else '?'}{urlencode(pairs, doseq=True)}"


def encode_body(call: Call) -> tuple[bytes | None, str | None]:
    """Return the call's body as bytes and its content type; both ``None`` where there is none."""
    body, content_type = _body(call)
    return b"".join(body.chunks()) if isinstance(body, Stream) else body, content_type


def _body(call: Call) -> tuple[bytes | Stream | None, str | None]:
    if call.json is not None:
        return codec.dumps(call.json), "application/json"
    if call.form is not None:
        return urlencode(call.form, doseq=True).encode(), "application/x-www-form-urlencoded"
    if call.multipart is not None:
        return _multipart(call.multipart)
    body = call.body
    return (body if body is None or isinstance(body, bytes) else Stream([body])), None


def _multipart(parts: Mapping[str, Any]) -> tuple[Stream, str]:
    boundary = secrets.token_hex(16)
    pieces: list[bytes | IO[bytes]] = []
    for name, given in parts.items():
        for part in [given] if isinstance(given, Part) else given:
            if not isinstance(part, Part):
                raise TypeError("a FromUrl is fetched by the steps of a handler, not by the transport")
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_in_quotes(name)}"'
            if part.filename is not None:
                head += f'; filename="{_in_quotes(part.filename)}"'
            if part.content_type is not None:
                head += f"\r\nContent-Type: {_one_line(part.content_type)}"
            content = part.content
            pieces += [
                f"{head}\r\n\r\n".encode(),
                content.encode() if isinstance(content, str) else content,
                b"\r\n",
            ]
    pieces.append(f"--{boundary}--\r\n".encode())
    return Stream(_joined(pieces)), f"multipart/form-data; boundary={boundary}"


def _joined(pieces: list[bytes | IO[bytes]]) -> list[bytes | IO[bytes]]:
    """Join neighbours in memory, so that small bodies go out in one piece."""
    joined: list[bytes | IO[bytes]] = []
    for piece in pieces:
        if isinstance(piece, bytes) and joined and isinstance(before := joined[-1], bytes):
            joined[-1] = before + piece
        else:
            joined.append(piece)
    return joined


def _in_quotes(text: str) -> str:
    """Return a name as browsers write it into a part's head."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _one_line(text: str) -> str:
    if _NOT_IN_A_VALUE.search(text):
        raise ValueError("content type of a part")
    return text
