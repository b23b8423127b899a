"""Every transport of core keeps the contract."""

from collections.abc import Callable

import pytest

from coatcheck.testing.transport_contract import TransportContract
from coatcheck.transport import RequestsTransport, Transport, Urllib3Transport
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
    """The async transport."""

    @pytest.fixture
    def new_transport(self) -> Callable[[], Transport]:
        """Return the class."""
        return AiohttpTransport
