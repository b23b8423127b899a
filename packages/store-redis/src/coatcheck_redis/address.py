"""Addresses of Redis: what a URL says, checked strictly, and the client that it asks for.

Nothing here sends a command. Passwords are kept out of every text that people see.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from attrs import field, frozen
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from coatcheck.errors import StoreConfigError, closest

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
#: A client of redis-py, whose clusters and sentinels are not typed.
Client = Any

_PORT, _SENTINEL_PORT = 6379, 26379
_LONGEST_TIMEOUT = 600.0


def _text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    return value


def _seconds(value: str) -> float:
    expected = f"seconds above 0, at most {_LONGEST_TIMEOUT:.0f}"
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError(expected) from None
    if not 0 < seconds <= _LONGEST_TIMEOUT:
        raise ValueError(expected)
    return seconds


def _flag(value: str) -> bool:
    if value not in {"yes", "no"}:
        raise ValueError("yes or no")
    return value == "yes"


def _number(value: str) -> int:
    if not value.isdecimal() or int(value) > 65_535:
        raise ValueError("a whole number from 0 on")
    return int(value)


_COMMON: dict[str, Callable[[str], Any]] = {
    "timeout": _seconds,
    "connect_timeout": _seconds,
    "allow_eviction": _flag,
    "client_name": _text,
}
_TLS: dict[str, Callable[[str], Any]] = {
    "ca_certs": _text,
    "certfile": _text,
    "keyfile": _text,
    "check_hostname": _flag,
}
_UNIX: dict[str, Callable[[str], Any]] = {"db": _number}
_SENTINEL: dict[str, Callable[[str], Any]] = {"sentinel_username": _text, "sentinel_password": _text}
#: Options whose values are never shown.
_SECRET = frozenset({"sentinel_password"})


@frozen(kw_only=True)
class Address:
    """Where Redis is, and how to talk to it."""

    #: For messages: without user and password.
    label: str
    kind: str
    is_tls: bool
    #: Host and port, in the order given; one unless a cluster or sentinels have several.
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    db: int = 0
    #: The name under which sentinels know the master.
    service: str = ""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: dict[str, Any] = field(factory=dict, repr=False)

    @property
    def may_evict(self) -> bool:
        """Whether a server that throws data away when it is full is accepted."""
        return bool(self.options.get("allow_eviction", False))

    def client(self) -> Client:
        """Return a new client; it connects when it is used.

        Its own retries are off: what may be repeated is decided where it is known.
        """
        options = self._connection_options()
        if self.kind == "cluster":
            make: Any = ClusterNode
            nodes = [make(host, port) for host, port in self.hosts]
            # A namespace needs one slot only, whatever is the matter with the others.
            return RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)
        if self.kind == "sentinel":
            same = {name: options[name] for name in options if name not in {"username", "password", "db"}}
            asked = {
                **same,
                "username": self.options.get("sentinel_username"),
                "password": self.options.get("sentinel_password"),
            }
            find: Any = Sentinel
            return find(list(self.hosts), sentinel_kwargs=asked, **options).master_for(self.service)
        if self.kind == "unix":
            return Redis(unix_socket_path=self.path, **options)
        ((host, port),) = self.hosts
        return Redis(host=host, port=port, **options)

    def _connection_options(self) -> dict[str, Any]:
        timeout = self.options.get("timeout", 10.0)
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "socket_timeout": timeout,
            "socket_connect_timeout": self.options.get("connect_timeout", min(timeout, 3.0)),
            "client_name": self.options.get("client_name", "coatcheck"),
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "socket_keepalive": self.kind != "unix",
        }
        if self.kind != "cluster":
            options["db"] = self.db
        if self.is_tls:
            options["ssl"] = True
            options["ssl_check_hostname"] = self.options.get("check_hostname", True)
            for ours, theirs in (
                ("ca_certs", "ssl_ca_certs"),
                ("certfile", "ssl_certfile"),
                ("keyfile", "ssl_keyfile"),
            ):
                if ours in self.options:
                    options[theirs] = self.options[ours]
        return options


def parse(url: str) -> Address:
    """Read a store's URL.

    Raises:
        StoreConfigError: it is no address of Redis, or an option is unknown or has a wrong value. What was
            found is not shown where it may be a secret.
    """
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise StoreConfigError(
            f"expected a URL that begins with one of {', '.join(f'{name}://' for name in SCHEMES)}, "
            "found another; write for instance redis://localhost:6379/0"
        )
    transport, _, kind = scheme.partition("+")
    kind = kind or ("unix" if scheme == "unix" else "single")
    try:
        split = urlsplit(f"{transport}:{url.partition(':')[2]}")
    except ValueError:
        # What it says of the URL may be a piece of the password.
        raise _refused("a host, as in redis://localhost:6379/0", "brackets that are no address") from None
    user_info, _, host_list = split.netloc.rpartition("@")
    for mark, place in (("#", url), ("@", split.query)):
        if mark in place:
            # What stands behind a bare # or ? of a password would be read, and shown, as something else.
            raise _refused(
                "a password's # written as %23 (and ? as %3F, / as %2F, @ as %40)",
                f"a bare {mark} in the URL",
            )
    username, _, password = user_info.partition(":")
    path = unquote(split.path)
    hosts: tuple[tuple[str, int], ...] = ()
    db, service = 0, ""
    if kind == "unix":
        if host_list or not path.strip("/"):
            raise _refused("unix:///path/to/redis.sock", "a host or no path")
        label = f"unix://{path}"
    else:
        hosts = _hosts(host_list, kind)
        service, db = _database(path, kind)
        shown = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
        label = f"{scheme}://{shown}{'/' + service if service else ''}{f'/{db}' if kind != 'cluster' else ''}"
    options = _options(split.query, kind, is_tls=transport == "rediss")
    return Address(
        label=label,
        kind=kind,
        is_tls=transport == "rediss",
        hosts=hosts,
        path=path,
        db=options.pop("db", db),
        service=service,
        username=unquote(username) or None,
        password=unquote(password) or None,
        options=options,
    )


def _refused(expected: str, found: str) -> StoreConfigError:
    return StoreConfigError(f"expected {expected} in the store's URL, found {found}")


def _hosts(text: str, kind: str) -> tuple[tuple[str, int], ...]:
    default = _SENTINEL_PORT if kind == "sentinel" else _PORT
    hosts = []
    for item in text.split(","):
        host, colon, port = item.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = item, str(default)
        host = host.removeprefix("[").removesuffix("]")
        if not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise _refused("host:port", "a port that is no number from 1 to 65535")
        if not host:
            raise _refused("a host, as in redis://localhost:6379/0", "none")
        hosts.append((host, int(port)))
    if kind == "single" and len(hosts) > 1:
        raise _refused(
            "one host", f"{len(hosts)}; begin with redis+cluster:// or redis+sentinel:// for several"
        )
    return tuple(hosts)


def _database(path: str, kind: str) -> tuple[str, int]:
    words = [word for word in path.split("/") if word]
    service = ""
    if kind == "sentinel":
        if not words:
            raise _refused("the master's name, as in redis+sentinel://host:26379/mymaster/0", "none")
        service = words.pop(0)
    if kind == "cluster" and words not in ([], ["0"]):
        raise _refused("no database: a cluster has only 0", "one")
    if len(words) > 1 or (words and not words[0].isdecimal()):
        raise _refused("the number of a database after the host", "something else")
    return service, int(words[0]) if words else 0


def _options(query: str, kind: str, *, is_tls: bool) -> dict[str, Any]:
    known = dict(_COMMON)
    if is_tls:
        known |= _TLS
    if kind == "unix":
        known |= _UNIX
    if kind == "sentinel":
        known |= _SENTINEL
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            listed = ", ".join(sorted(known))
            raise StoreConfigError(
                f"unknown option {name!r} in the store's URL{closest(name, known)} (known here: {listed})"
            )
        if name in found:
            raise _refused(f"the option {name} once", "it twice")
        try:
            found[name] = known[name](value)
        except ValueError as error:
            shown = "something else" if name in _SECRET else repr(value)
            raise _refused(f"{name} to be {error}", shown) from None
    return found
