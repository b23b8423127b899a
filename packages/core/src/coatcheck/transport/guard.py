"""Names resolved and checked: guarded calls connect to the addresses that were checked, and to no others."""

import socket

from coatcheck.errors import UnsafeUrlError
from coatcheck.http.address import check_address


def public_addresses(host: str, port: int) -> list[str]:
    """Return all addresses of a host, if every one of them is public.

    A name that leads to a public and to a private address is refused whole: somebody plays with it.

    Raises:
        UnsafeUrlError: one of them is not.
        OSError: the name cannot be resolved.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        check_address(address, host)
    return addresses


def check_behind_proxy(host: str, port: int) -> None:
    """Refuse a host that leads to an address which is not public, as far as we can tell: a proxy connects.

    Raises:
        UnsafeUrlError: it does, for us.
    """
    try:
        public_addresses(host, port)
    except UnsafeUrlError:
        raise
    except OSError:
        # Behind a proxy only the proxy may be able to resolve it.
        return
