"""The quicker transport over threads, on the connections of ``urllib3``."""

import ssl
import time

from urllib3.connection import HTTPConnection, HTTPSConnection

from coatcheck.errors import CoatcheckError
from coatcheck.http import Call, Reply
from coatcheck.transport import protocol
from coatcheck.transport.connections import GuardedConnection, GuardedTlsConnection
from coatcheck.transport.outgoing import Origin, Outgoing, Stream
from coatcheck.transport.over_requests import RequestsLine
from coatcheck.transport.pool import Line, PooledTransport
from coatcheck.transport.quiet import quiet
from coatcheck.transport.reading import maybe_sent, not_sent, read_all


class Urllib3Transport(PooledTransport):
    """Calls over the connections that requests uses too, without what it adds to each call.

    Behind a proxy it works as ``RequestsTransport`` does. See ``PooledTransport`` for the rest.
    """

    def _open(self, origin: Origin, proxy: str | None, *, is_guarded: bool) -> Line:
        tls = self._environment.tls() if origin.scheme == "https" else None
        if proxy is not None:
            return RequestsLine(tls, proxy, is_guarded=is_guarded)
        return _DirectLine(origin, tls, is_guarded=is_guarded)


class _DirectLine(Line):
    """One connection without a pool around it."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, *, is_guarded: bool) -> None:
        self._link: HTTPConnection
        if tls is not None:
            made = GuardedTlsConnection if is_guarded else HTTPSConnection
            self._link = made(origin.host, origin.port, ssl_context=tls)
        else:
            self._link = (GuardedConnection if is_guarded else HTTPConnection)(origin.host, origin.port)

    def exchange(self, outgoing: Outgoing, call: Call) -> Reply:
        """Send and read; see ``Line.exchange``."""
        link, seconds = self._link, call.timeout.total_seconds()
        until = time.monotonic() + seconds
        if not link.is_connected:
            link.close()
            link.timeout = min(protocol.CONNECT_TIMEOUT, seconds)
            try:
                link.connect()
            except CoatcheckError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever it is, nothing was sent
                raise not_sent(error, call) from None
        body = outgoing.body
        link.timeout = seconds
        link.sock.settimeout(seconds)
        quiet.on = True
        try:
            link.request(
                outgoing.method,
                outgoing.target,
                body=body.chunks() if isinstance(body, Stream) else body,
                headers=outgoing.headers,
                preload_content=False,
            )
            response = link.getresponse()
            content, file = read_all(
                lambda size: response.read1(size, decode_content=True), call, response.status, until
            )
        except CoatcheckError:
            raise
        except Exception as error:  # noqa: BLE001  # the one question is whether the call was sent
            raise maybe_sent(error, call) from None
        finally:
            quiet.on = False
        return Reply(response.status, content, response.headers, file=file)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
