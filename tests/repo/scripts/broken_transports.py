"""Transports that break one rule each, held to the contract; a script of ``test_broken_transports``.

It is run by a pytest of its own: most of these tests fail, which is the point.
"""

import logging
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from coatcheck.errors import MaybeSentError, NotSentError
from coatcheck.http import Call, Reply
from coatcheck.model import Account
from coatcheck.testing.transport_contract import TransportContract
from coatcheck.transport import Transport, Urllib3Transport, full_url
from coatcheck.transport.guard import public_addresses


class Retrying(Urllib3Transport):
    """Sends a call again when its reply was lost."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Try twice."""
        try:
            return super().perform(call, account)
        except MaybeSentError:
            return super().perform(call, account)


class Redirected(Urllib3Transport):
    """Goes where it is sent, with everything it has."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Follow."""
        reply = super().perform(call, account)
        place = reply.header("location")
        return super().perform(call.evolve(url=place), account) if place else reply


class Remembering(Urllib3Transport):
    """Keeps cookies."""

    cookie = ""

    def perform(self, call: Call, account: Account) -> Reply:
        """Send and keep the cookie."""
        reply = super().perform(call.with_headers(Cookie=self.cookie) if self.cookie else call, account)
        self.cookie = reply.header("set-cookie") or self.cookie
        return reply


class Alarmed(Urllib3Transport):
    """Believes that everything may have been sent."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Rename the error."""
        try:
            return super().perform(call, account)
        except NotSentError as error:
            raise MaybeSentError(error.message) from None


class Hopeful(Urllib3Transport):
    """Believes that what got no reply was not sent."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Rename the error."""
        try:
            return super().perform(call, account)
        except MaybeSentError as error:
            raise NotSentError(error.message, code=error.code) from None


class Boundless(Urllib3Transport):
    """Reads whatever comes."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Forget the cap."""
        return super().perform(call.evolve(body_cap=1 << 40), account)


class Careless(Urllib3Transport):
    """Goes wherever a call leads."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Forget the guard."""
        return super().perform(call.evolve(guarded=False), account)


class Rebound(Urllib3Transport):
    """Checks a name, and asks for it again to connect."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Check first, call afterwards."""
        if call.guarded:
            parts = urlsplit(call.url)
            public_addresses(parts.hostname or "", parts.port or 80)
        return super().perform(call.evolve(guarded=False), account)


class Sharing(Urllib3Transport):
    """Uses one connection for all accounts."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Forget whose call it is."""
        return super().perform(call, Account("all", account.secret))


class Stale(Urllib3Transport):
    """Uses any old connection for a submit."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Forget that it creates a job."""
        return super().perform(call.evolve(creates=False), account)


class Unsigned(Urllib3Transport):
    """Sends calls as they are."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Forget to sign."""
        return super().perform(call.evolve(sign=None), account)


class Chatty(Urllib3Transport):
    """Logs what it does."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Say it all."""
        signed = call.sign(call) if call.sign else call
        logging.getLogger("chatty").debug("calling %s", full_url(signed))
        return super().perform(call, account)


class Hoarding(Urllib3Transport):
    """Keeps every body in memory."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Forget the file."""
        return super().perform(call.evolve(spool=False), account)


class Immortal(Urllib3Transport):
    """Does not close."""

    def close(self) -> None:
        """Go on."""


def _contract(transport: type[Transport]) -> type[TransportContract]:
    class Broken(TransportContract):
        @pytest.fixture
        def new_transport(self) -> Callable[[], Transport]:
            """Return the class."""
            return transport

    Broken.__name__ = Broken.__qualname__ = f"Test{transport.__name__}"
    return Broken


TestHonest = _contract(Urllib3Transport)
TestRetrying = _contract(Retrying)
TestRedirected = _contract(Redirected)
TestRemembering = _contract(Remembering)
TestAlarmed = _contract(Alarmed)
TestHopeful = _contract(Hopeful)
TestBoundless = _contract(Boundless)
TestCareless = _contract(Careless)
TestRebound = _contract(Rebound)
TestSharing = _contract(Sharing)
TestStale = _contract(Stale)
TestUnsigned = _contract(Unsigned)
TestChatty = _contract(Chatty)
TestHoarding = _contract(Hoarding)
TestImmortal = _contract(Immortal)
