"""URLs of Redis: what each part means, what is refused, and that no password is ever shown."""

import pickle

import pytest

from coatcheck.errors import StoreConfigError
from coatcheck_redis.address import SCHEMES, parse
from coatcheck_redis.plugin import _SCHEMES

SECRET = "s3cret-pa55"


def test_the_plugin_registers_every_scheme() -> None:
    """A scheme that can be read can be opened."""
    assert set(_SCHEMES) == set(SCHEMES)


@pytest.mark.parametrize(
    ("url", "label", "kind", "is_tls"),
    [
        ("redis://localhost", "redis://localhost:6379/0", "single", False),
        ("redis://localhost:7000/3", "redis://localhost:7000/3", "single", False),
        ("REDIS://[::1]:7000/3", "redis://[::1]:7000/3", "single", False),
        ("rediss://redis.example/1", "rediss://redis.example:6379/1", "single", True),
        ("unix:///run/redis.sock", "unix:///run/redis.sock", "unix", False),
        ("redis+sentinel://a,b:7/main", "redis+sentinel://a:26379,b:7/main/0", "sentinel", False),
        ("rediss+sentinel://a/main/2", "rediss+sentinel://a:26379/main/2", "sentinel", True),
        ("redis+cluster://a,b:7", "redis+cluster://a:6379,b:7", "cluster", False),
        ("rediss+cluster://a/0", "rediss+cluster://a:6379", "cluster", True),
    ],
)
def test_a_url_says_where_redis_is(url: str, label: str, kind: str, is_tls: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """Hosts, ports, database and service are read from their places, with the usual defaults."""
    address = parse(url)
    assert (address.label, address.kind, address.is_tls) == (label, kind, is_tls)


def test_options_follow_a_question_mark() -> None:
    """Each option has a type; a database of a socket is one of them."""
    address = parse("unix:///run/redis.sock?db=4&timeout=1.5&allow_eviction=yes")
    assert (address.db, address.path, address.options["timeout"], address.may_evict) == (
        4,
        "/run/redis.sock",
        1.5,
        True,
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost", "redis+sentinel://"),
        ("redis://", "a host"),
        ("redis://a,b", "redis+cluster"),
        ("redis://a:port", "1 to 65535"),
        ("redis://a:70000", "1 to 65535"),
        ("redis://a/first", "number of a database"),
        ("redis://a/1/2", "number of a database"),
        ("unix://host/run/redis.sock", "unix:///path"),
        ("unix:///", "unix:///path"),
        ("redis+sentinel://a", "mymaster"),
        ("redis+cluster://a/1", "only 0"),
        ("redis://a?timeuot=3", "did you mean 'timeout'"),
        ("redis://a?timeout=soon", "seconds above 0"),
        ("redis://a?timeout=0", "seconds above 0"),
        ("redis://a?timeout=nan", "seconds above 0"),
        ("redis://a?timeout=1&timeout=2", "once"),
        ("redis://a?allow_eviction=true", "yes or no"),
        ("redis://a?client_name=", "not empty"),
        ("redis://a?ca_certs=/x", "unknown option 'ca_certs'"),
        ("redis://a?db=1", "unknown option 'db'"),
        ("unix:///s?db=x", "whole number"),
        ("redis://:pass#word@a/0", "%23"),
        ("redis://me:12?word@a/0", "%3F"),
    ],
)
def test_a_wrong_url_is_refused_with_the_right_one(url: str, words: str) -> None:
    """Nothing is guessed and nothing is passed over: the message says what was expected."""
    with pytest.raises(StoreConfigError) as found:
        parse(url)
    assert words in str(found.value)


def test_user_and_password_may_hold_any_character() -> None:
    """They are written as in any URL."""
    address = parse("redis://us%40er:p%23%3A%2F%3F@a/0")
    assert (address.username, address.password) == ("us@er", "p#:/?")


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@localhost/0",
        f"redis+sentinel://:{SECRET}@localhost/main?sentinel_password={SECRET}",
        f"redis+cluster://user:{SECRET}@localhost",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """Neither the address nor what is printed of it holds the secret (G8)."""
    address = parse(url)
    assert address.password == SECRET
    assert SECRET not in repr(address) + str(address) + address.label


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@a:port/0",
        f"redis://user:{SECRET}@a/first",
        f"redis://:{SECRET}#x@a/0",
        f"redis://user:1234?{SECRET}@a/0",
        f"redis://user:1234?{SECRET}=x@a/0",
        f"redis://user:1234/{SECRET}@a/0",
        f"redis://user:{SECRET}@/0",
        f"redis://user:{SECRET}@a/0?tiemout=1",
        f"redis+sentinel://user:{SECRET}@a",
        f"redis+cluster://user:{SECRET}@a/1",
        f"redi://user:{SECRET}@a/1",
        f"redis+sentinel://a/main?sentinel_password={SECRET}&sentinel_password={SECRET}",
        f"redis://a?sentinel_password={SECRET}",
        f"redis://us[er:{SECRET}@a]/0",
    ],
)
def test_an_error_shows_no_password(url: str) -> None:
    """A URL that is refused is not repeated, nor in what the error was made of (G8)."""
    with pytest.raises(StoreConfigError) as found:
        parse(url)
    error = found.value
    assert SECRET not in f"{error} {error!r} {pickle.dumps(error)!r}"
    assert error.__cause__ is None or SECRET not in repr(error.__cause__)
