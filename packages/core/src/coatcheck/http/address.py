"""Where calls may lead: base URLs, listed hosts, and which addresses are public. Pure: no name is resolved.

What only the network knows (where a name leads) is checked by the transports, with ``check_address``.
"""

import ipaddress
import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from urllib.parse import urlsplit

from coatcheck.errors import UnsafeUrlError

UNSAFE_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
#: Hosts that some resolvers read as addresses in decimal, octal or hexadecimal parts.
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?")
#: What ``is_global`` of some Python counts as public: protocol assignments, relays, and a cloud's metadata.
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: The only part of IPv6 from which addresses on the open network are given out.
_GLOBAL6 = ipaddress.ip_network("2000::/3")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Trust(Enum):
    """What is known of the host that a call goes to."""

    #: The handler's own origin: signed.
    OWN = "own"
    #: Listed in such a way that it may lead anywhere.
    LISTED = "listed"
    #: Listed by name: must lead to public addresses.
    PUBLIC = "public"
    UNKNOWN = "unknown"


def origin_of(url: str) -> str:
    """Return ``scheme://host:port`` of an absolute URL.

    Raises:
        UnsafeUrlError: not an http or https URL, or one that names a user or holds what no URL may hold.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise UnsafeUrlError(
            f"{parts.scheme or 'no scheme'}://{parts.hostname or 'no host'}; "
            "write http(s)://host without a user"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def host_of(origin: str) -> str:
    """Return the host of what ``origin_of`` returned, without brackets."""
    return origin.partition("://")[2].rpartition(":")[0].strip("[]")


@lru_cache(maxsize=256)
def split_base(base: str) -> tuple[str, str]:
    """Return a base URL without a trailing slash, and its origin.

    Raises:
        UnsafeUrlError: it is none.
    """
    if UNSAFE_IN_URL.search(base) or "?" in base or "#" in base:
        raise UnsafeUrlError(base.partition("?")[0])
    return base.rstrip("/"), origin_of(base)


def trust(origin: str, own: str, allowed: Iterable[str]) -> Trust:
    """Return what a handler's ``allowed_hosts`` say about an origin.

    Args:
        origin: where a call leads.
        own: the origin of the handler's base URL.
        allowed: ``"files.vendor.example"``, ``".vendor.example"`` for all below it, or a whole origin like
            ``"http://10.0.0.7:9000"``.
    """
    if origin == own:
        return Trust.OWN
    host = host_of(origin)
    found = Trust.UNKNOWN
    for entry in allowed:
        if "://" in entry:
            if origin_of(entry) == origin:
                return Trust.LISTED
        elif entry == host:
            # An address says where it leads; and what stands beside a base URL on this machine may be there.
            is_meant = host == host_of(own) or _literal(host) is not None or _is_local_name(host)
            return Trust.LISTED if is_meant else Trust.PUBLIC
        elif entry.startswith(".") and host.endswith(entry):
            found = Trust.PUBLIC
    return found


def check_host(host: str) -> None:
    """Refuse a host that is written as an address which is not public, or that hides that it is one.

    Raises:
        UnsafeUrlError: private, loopback, link-local or otherwise not public; or an address in decimal,
            octal or hexadecimal, which programs read differently.
    """
    literal = _literal(host)
    if literal is not None:
        check_address(str(literal), host)
    elif _NUMERIC.fullmatch(host):
        raise UnsafeUrlError(f"{host} hides an address; write it with four decimal numbers")
    elif _is_local_name(host):
        raise UnsafeUrlError(_refusal(host, "this machine"))


def check_address(address: str, host: str) -> None:
    """Refuse an address that is not public.

    Args:
        address: as the resolver returned it.
        host: the name that led there.

    Raises:
        UnsafeUrlError: private, loopback, link-local, reserved, multicast, or a cloud's metadata service;
            also inside an IPv6 address.
    """
    found = ipaddress.ip_address(address)
    if not all(_is_public(one) for one in (found, *_inside(found))):
        raise UnsafeUrlError(_refusal(host, "an address that is not public"))


def check_public(url: str) -> None:
    """Refuse a URL that certainly does not lead to a public host; for ``TaskHandler.validate``.

    Names are not resolved here: that is done again, for good, when the call is made.

    Raises:
        UnsafeUrlError: see ``check_host``; or not an http or https URL.
    """
    if UNSAFE_IN_URL.search(url):
        raise UnsafeUrlError("a URL may hold no spaces, control characters or backslashes; quote them")
    check_host(host_of(origin_of(url)))


def _refusal(host: str, what: str) -> str:
    return (
        f"{host} leads to {what}; calls to addresses that a vendor or a request supplied go to public hosts "
        f'only: if this one is meant, list its origin in allowed_hosts, like "http://{host}:80"'
    )


def _literal(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local_name(host: str) -> bool:
    return f".{host.rstrip('.')}".endswith(".localhost")


def _inside(address: _Address) -> list[_Address]:
    """Return the IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # judged by what is inside
        return address in _GLOBAL6 and address.is_global
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )
