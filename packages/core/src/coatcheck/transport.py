"""Transports perform calls; this is the only module that imports ``requests``.

A transport sends each call once: no retries, no redirects, no cookies, no credentials but those that the
    call's ``sign`` adds. It says by the class of its error whether the vendor can have seen the call, and
    knows nothing of jobs, handlers or the reply table.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection
from importlib.metadata import version
from traceback import walk_tb
from typing import Any, Protocol, Self
from urllib.parse import urlencode, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies

from coatcheck import codec
from coatcheck.errors import CoatcheckError, MaybeSentError, NotSentError, VendorError
from coatcheck.http import Call, Part, Reply
from coatcheck.model import Account

#: How long to wait for a connection, in seconds.
CONNECT_TIMEOUT = 10.0
#: A connection that idled for longer (in seconds) is not used for a submit: the vendor may be closing it at
#: this moment, and a submit that meets a closed connection has an unknown outcome.
FRESH = 1.0
#: A connection that idled for longer (in seconds) is closed.
IDLE = 60.0


class Transport(Protocol):
    """Performs calls; may be used by many threads at once."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Send the call once, signed last, and return whatever the vendor answered.

        Raises:
            NotSentError: the vendor certainly saw nothing (the name, the connection or TLS failed).
            MaybeSentError: the vendor may have seen it (reset, timeout, cut-off reply).
            VendorError: the reply's body is over the call's cap.
        """
        ...

    def close(self) -> None:
        """Close every connection; the transport must not be used afterwards."""
        ...


class RequestsTransport:
    """The default transport, over ``requests``.

    Connections are pooled by origin and account. Proxies and CA bundles come from the environment as users of
    requests expect (``HTTPS_PROXY``, ``NO_PROXY``, ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``), read once per
    origin and not per call; netrc files are not read. A process that was forked opens connections of its own.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], _Pool] = {}
        self._ca_bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False

    def perform(self, call: Call, account: Account) -> Reply:
        """Send the call once; see ``Transport.perform``."""
        prepared, origin = _prepare(call)
        pool = self._pool(origin, account.name)
        line = pool.take(FRESH if call.creates else IDLE)
        try:
            reply = _exchange(line, prepared, call, pool.proxies, self._ca_bundle)
        except BaseException:
            # Half a reply may be left on the connection.
            line.close()
            raise
        pool.give_back(line)
        return reply

    def close(self) -> None:
        """Close idle connections now, and those in use when their call ends."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pool(self, origin: str, account: str) -> "_Pool":
        if self._pid != os.getpid():
            self._leave_parent()
        pool = self._pools.get((origin, account))
        if pool is None:
            with self._lock:
                if self._is_closed:
                    raise NotSentError(f"the transport is closed; nothing was sent to {origin}")
                pool = self._pools.setdefault((origin, account), _Pool(get_environ_proxies(origin)))
        return pool

    def _leave_parent(self) -> None:
        """After a fork: the parent goes on using the connections that we inherited."""
        # The lock too may have been copied while a thread of the parent held it.
        self._lock = threading.Lock()
        inherited, self._pools, self._pid = self._pools, {}, os.getpid()
        for pool in inherited.values():
            pool.close()


class _Line(HTTPAdapter):
    """One connection, used by one call at a time: so it is known exactly how long it idled."""

    def __init__(self) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)
        self.idle_since = 0.0


class _Pool:
    """The idle connections to one origin for one account, the latest used last."""

    def __init__(self, proxies: Mapping[str, str]) -> None:
        self.proxies = dict(proxies)
        self._idle: deque[_Line] = deque()
        self._is_closed = False

    def take(self, freshness: float) -> _Line:
        """Return the connection used last if it idled for at most ``freshness`` seconds, else a new one."""
        try:
            line = self._idle.pop()
        except IndexError:
            return _Line()
        if time.monotonic() - line.idle_since > freshness:
            line.close()
        return line

    def give_back(self, line: _Line) -> None:
        """Keep the connection for the next call, and close the one that idled longest if for too long."""
        line.idle_since = now = time.monotonic()
        self._idle.append(line)
        if self._is_closed:
            self.close()
        elif now - self._idle[0].idle_since > IDLE:
            self._close_one()

    def close(self) -> None:
        """Close all idle connections, and from now on those that come back."""
        self._is_closed = True
        while self._idle:
            self._close_one()

    def _close_one(self) -> None:
        try:
            self._idle.popleft().close()
        except IndexError:
            # Another thread took it meanwhile.
            return


def _prepare(call: Call) -> tuple[requests.PreparedRequest, str]:
    """Return the request as it goes out, signed, and its origin."""
    try:
        if call.sign is not None:
            call = call.sign(call)
        body, content_type = encode_body(call)
        headers = {"User-Agent": _USER_AGENT, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        headers.update(call.headers)
        # Without this it is found out when the connection is open, and looks as if something had been sent.
        "".join((call.method, *headers.values())).encode("latin-1")
        prepared = requests.PreparedRequest()
        prepared.prepare(method=call.method, url=full_url(call), headers=headers, data=body)
        parts = urlsplit(prepared.url or "")
        return prepared, f"{parts.scheme}://{parts.netloc}"
    except CoatcheckError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing was sent
        # Only the type: the text may hold the URL with a token in it.
        raise NotSentError(
            f"{call!r} cannot be written as HTTP ({type(error).__name__}); check its URL and headers",
            code="bad_call",
        ) from None


def _exchange(
    line: _Line, prepared: requests.PreparedRequest, call: Call, proxies: dict[str, str], verify: Any
) -> Reply:
    seconds = call.timeout.total_seconds()
    until = time.monotonic() + seconds
    try:
        # The adapter without a Session: that would add cookies, hooks and the environment to each call.
        response = line.send(
            prepared,
            stream=True,
            timeout=(min(CONNECT_TIMEOUT, seconds), seconds),
            verify=verify,
            proxies=proxies,
        )
    except Exception as error:  # noqa: BLE001  # the one question is whether the call was sent
        raise _translate(error, call) from None
    try:
        body = _read(response, call, until)
    except CoatcheckError:
        raise
    except Exception as error:  # noqa: BLE001  # the one question is whether the call was sent
        raise _translate(error, call) from None
    return Reply(response.status_code, body, response.headers)


def _read(response: requests.Response, call: Call, until: float) -> bytes:
    """Read the body up to the cap of the call; a larger or endless one is an error, whatever it says."""
    cap = call.body_cap
    body = b""
    # Not read, which waits for all of it: a reply that trickles must meet the deadline between two bytes.
    while chunk := response.raw.read1(cap + 1 - len(body), decode_content=True):
        body = body + chunk if body else chunk
        if len(body) > cap:
            raise VendorError(
                f"the reply to {call!r} is larger than {cap} bytes; raise the call's body_cap if it may be",
                code="body_too_large",
                http_status=response.status_code,
            )
        if time.monotonic() > until:
            raise MaybeSentError(f"the reply to {call!r} did not end within {call.timeout}", code="timeout")
    return body


def _translate(error: Exception, call: Call) -> CoatcheckError:
    """Return the error that says whether the vendor can have seen the call."""
    root = _root(error)
    parts = urlsplit(call.url)
    where = f"{parts.scheme}://{parts.hostname}"
    reason = f"{type(root).__name__}: {str(root)[:200]}"
    if _is_connecting(error):
        return NotSentError(f"could not connect to {where} for {call!r} ({reason}); nothing was sent")
    code = (
        "timeout"
        if isinstance(error, requests.Timeout) or isinstance(root, TimeoutError)
        else "connection_lost"
    )
    return MaybeSentError(f"{call!r} got no whole reply ({reason}); the vendor may have seen it", code=code)


def _is_connecting(error: BaseException) -> bool:
    """Whether the call failed inside a connection's ``connect``: resolving, connecting, a tunnel, TLS."""
    return any(
        frame.f_code.co_name == "connect" and isinstance(frame.f_locals.get("self"), HTTPConnection)
        for found in _chain(error)
        for frame, _ in walk_tb(found.__traceback__)
    )


def _root(error: BaseException) -> BaseException:
    return _chain(error)[-1]


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and those behind it, the first cause last."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and not any(found is known for known in chain):
        chain.append(found)
        found = found.__cause__ or found.__context__
    return chain


def full_url(call: Call) -> str:
    """Return the call's URL with its query."""
    pairs = [(name, value) for name, value in call.query.items() if value is not None]
    if not pairs:
        return call.url
    return f"{call.url}{'&' if '?' in call.url else '?'}{urlencode(pairs, doseq=True)}"


def encode_body(call: Call) -> tuple[bytes | None, str | None]:
    """Return the call's body as bytes and its content type; both ``None`` where there is none."""
    if call.json is not None:
        return codec.dumps(call.json), "application/json"
    if call.form is not None:
        return urlencode(call.form, doseq=True).encode(), "application/x-www-form-urlencoded"
    if call.multipart is not None:
        return _multipart(call.multipart)
    return call.body, None


def _multipart(parts: Mapping[str, Part]) -> tuple[bytes, str]:
    files: list[Any] = [
        (name, (part.filename, part.content, part.content_type)) for name, part in parts.items()
    ]
    request = requests.Request("POST", "http://multipart.invalid/", files=files).prepare()
    body = request.body
    assert isinstance(body, bytes)  # noqa: S101  # narrows the type: requests encodes files into bytes
    return body, request.headers["Content-Type"]


_USER_AGENT = f"coatcheck/{version('coatcheck')}"
