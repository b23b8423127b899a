"""Tokens that a vendor hands out for an account's credentials, kept until they expire.

They are kept in memory only, beside the handler; how one is got is the handler's business.
"""

import hmac
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import attrs
from attrs import field, frozen

from coatcheck.model import EMPTY

#: A token is not used in its last moments: the call must arrive before it expires.
MARGIN = timedelta(seconds=60)
#: No margin takes more than this part of a token's lifetime.
_SHARE = 5


@frozen
class Token:
    """What a vendor gave for an account's credentials.

    Args:
        value: what ``account.secret("token")`` returns.
        lifetime: how long it holds, from the moment it was asked for; ``None``: until the vendor refuses it.
        extra: what getting the next one needs, such as a refresh token.
    """

    value: str = field(repr=False)
    lifetime: timedelta | None = None
    extra: Mapping[str, str] = field(default=EMPTY, repr=False, kw_only=True)


@frozen
class Kept:
    """A token beside what it was made of."""

    token: Token
    #: The parts of the account that it was made of: when one is rotated, the token is old.
    parts: Mapping[str, str] = field(repr=False)
    expires_at: datetime | None
    is_refused: bool = False
    _turn: list[bool] = field(factory=lambda: [True], repr=False)

    def is_good(self, now: datetime, secret: Callable[[str], str]) -> bool:
        """Whether the token may be used: not refused or about to expire, and made of today's credentials."""
        if self.is_refused or (self.expires_at is not None and now >= self.expires_at - self._margin):
            return False
        return all(_same(secret(part), value) for part, value in self.parts.items())

    def is_my_turn(self, now: datetime) -> bool:
        """Whether the caller should get the next token; true for one of those who use a good but old one."""
        if self.expires_at is None or now < self.expires_at - 2 * self._margin:
            return False
        try:
            return self._turn.pop()  # atomic: exactly one caller gets the element
        except IndexError:
            return False

    @property
    def _margin(self) -> timedelta:
        return min(MARGIN, (self.token.lifetime or MARGIN * _SHARE) / _SHARE)


class TokenCache:
    """The tokens of one handler, by origin and account; for all threads, and the later writer wins."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Kept] = {}

    def get(self, key: tuple[str, str]) -> Kept | None:
        """Return what is kept, good or not."""
        return self._kept.get(key)

    def put(self, key: tuple[str, str], token: Token, parts: Mapping[str, str], now: datetime) -> None:
        """Keep a token that was asked for at ``now``."""
        self._kept[key] = Kept(token, dict(parts), None if token.lifetime is None else now + token.lifetime)

    def drop(self, key: tuple[str, str], value: str) -> None:
        """Use a token no more that the vendor refused, unless another has taken its place meanwhile."""
        kept = self._kept.get(key)
        if kept is not None and _same(kept.token.value, value):
            self._kept[key] = attrs.evolve(kept, is_refused=True)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
