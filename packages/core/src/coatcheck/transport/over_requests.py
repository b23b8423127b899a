"""The default transport, over ``requests``."""

import ssl
import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.connection import HTTPConnection

from coatcheck.errors import CoatcheckError
from coatcheck.http import Call, Reply
from coatcheck.transport import protocol
from coatcheck.transport.connections import GUARDED_POOLS
from coatcheck.transport.outgoing import Origin, Outgoing, Stream
from coatcheck.transport.pool import Line, PooledTransport
from coatcheck.transport.quiet import quiet
from coatcheck.transport.reading import is_inside, maybe_sent, not_sent, read_all


class RequestsTransport(PooledTransport):
    """The default transport, over ``requests``: its proxies (SOCKS with its extra), its certificates.

    See ``PooledTransport`` for what all transports over threads have in common.
    """

    def _open(self, origin: Origin, proxy: str | None, *, is_guarded: bool) -> Line:
        tls = self._environment.tls() if origin.scheme == "https" else None
        return RequestsLine(tls, proxy, is_guarded=is_guarded)


class _Adapter(HTTPAdapter):
    """One connection: pools of one, with the certificates that were read once."""

    def __init__(self, tls: ssl.SSLContext | None, *, is_guarded: bool) -> None:
        self._tls = tls
        self._is_guarded = is_guarded
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=self._tls)
        if self._is_guarded:
            self.poolmanager.pool_classes_by_scheme = GUARDED_POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, **options, ssl_context=self._tls)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave it to the context, which checks everything."""


class RequestsLine(Line):
    """One connection of requests."""

    def __init__(self, tls: ssl.SSLContext | None, proxy: str | None, *, is_guarded: bool) -> None:
        self._adapter = _Adapter(tls, is_guarded=is_guarded)
        self._proxies = {} if proxy is None else {"http": proxy, "https": proxy}

    def exchange(self, outgoing: Outgoing, call: Call) -> Reply:
        """Send and read; see ``Line.exchange``."""
        seconds = call.timeout.total_seconds()
        until = time.monotonic() + seconds
        body = outgoing.body
        request = requests.PreparedRequest()
        request.method, request.url = outgoing.method, outgoing.url
        request.headers = CaseInsensitiveDict(outgoing.headers)
        request.body = body.chunks() if isinstance(body, Stream) else body  # type: ignore[assignment]  # the stubs know no generator
        raw: Any = None
        quiet.on = True
        try:
            # The adapter without a Session: that would add cookies, hooks and the environment to each call.
            response = self._adapter.send(
                request,
                stream=True,
                timeout=(min(protocol.CONNECT_TIMEOUT, seconds), seconds),
                proxies=self._proxies,
            )
            raw = response.raw
            content, file = read_all(
                lambda size: raw.read1(size, decode_content=True), call, response.status_code, until
            )
        except CoatcheckError:
            _break_off(raw)
            raise
        except Exception as error:  # noqa: BLE001  # the one question is whether the call was sent
            _break_off(raw)
            is_unsent = is_inside(error, "connect", HTTPConnection)
            raise (not_sent if is_unsent else maybe_sent)(error, call) from None
        finally:
            quiet.on = False
        return Reply(response.status_code, content, response.headers, file=file)

    def close(self) -> None:
        """Close the connection."""
        self._adapter.close()


def _break_off(raw: Any) -> None:
    """Close the connection of a reply that was not read to its end: no pool has it."""
    if raw is not None:
        raw.close()
