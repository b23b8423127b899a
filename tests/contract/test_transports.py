"""Every transport of core keeps the contract."""

import asyncio
from collections.abc import Callable

import pytest

from coatcheck.testing.transport_contract import TransportContract
from coatcheck.transport import RequestsTransport, Transport, Urllib3Transport, over_aiohttp
from coatcheck.transport.over_aiohttp import AiohttpTransport


class TestRequests(TransportContract):
    """The default transport."""

    @pytest.fixture
    def new_transport(self) -> Callable[[], Transport]:
        """Return the class."""
        return RequestsTransport


class TestUrllib3(TransportContract):
    """The transport over urllib3."""

    @pytest.fixture
    def new_transport(self) -> Callable[[], Transport]:
        """Return the class."""
        return Urllib3Transport


class TestAiohttp(TransportContract):
    """The async transport, on uvloop where there is a build of it."""

    @pytest.fixture
    def new_transport(self) -> Callable[[], Transport]:
        """Return the class."""
        return AiohttpTransport


class TestAiohttpWithoutUvloop(TransportContract):
    """The async transport on the event loop that Python brings."""

    @pytest.fixture
    def new_transport(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Transport]:
        """Return the class."""
        monkeypatch.setattr(over_aiohttp, "new_event_loop", asyncio.new_event_loop)
        return AiohttpTransport
