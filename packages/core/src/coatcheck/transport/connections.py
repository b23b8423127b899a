"""Connections of urllib3 that are made to public addresses only."""

import socket

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from coatcheck.transport.guard import public_addresses


class _Guarded(HTTPConnection):
    """Resolves its host itself, and connects to what was checked: a second answer of DNS cannot matter."""

    def _new_conn(self) -> socket.socket:
        name = self._dns_host
        addresses = public_addresses(name, self.port)
        try:
            for address in addresses[:-1]:
                self._dns_host = address
                try:
                    return super()._new_conn()
                except Exception:  # noqa: BLE001, S112  # the next address may answer
                    continue
            self._dns_host = addresses[-1]
            return super()._new_conn()
        finally:
            # For TLS, and for the Host header.
            self._dns_host = name


class GuardedConnection(_Guarded):
    """A plain connection to a public address."""


class GuardedTlsConnection(_Guarded, HTTPSConnection):
    """A TLS connection to a public address."""


class _GuardedPool(HTTPConnectionPool):
    ConnectionCls = GuardedConnection


class _GuardedTlsPool(HTTPSConnectionPool):
    ConnectionCls = GuardedTlsConnection


#: For pool managers.
GUARDED_POOLS = {"http": _GuardedPool, "https": _GuardedTlsPool}
