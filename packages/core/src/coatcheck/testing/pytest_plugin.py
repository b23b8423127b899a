"""The pytest plugin: fixtures for anybody's tests, loaded by an entry point wherever coatcheck is installed.

Nothing of coatcheck is imported until a fixture is used, so that the plugin costs other projects nothing and
spoils nobody's coverage. Whatever a fixture opens it closes. ``-p no:coatcheck`` turns the plugin off.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coatcheck.testing.clock import FakeClock
    from coatcheck.testing.vendor import LocalVendor
    from coatcheck.transport import RequestsTransport


@pytest.fixture
def coatcheck_clock() -> "FakeClock":
    """Return a clock that stands still until the test moves it with ``advance``."""
    from coatcheck.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def coatcheck_vendor() -> "Iterator[LocalVendor]":
    """Return a vendor that listens on localhost, with jobs that end at their second query.

    Its handlers are in ``coatcheck.testing.vendor``: ``VendorHandler(coatcheck_vendor.url)``.
    """
    from coatcheck.testing.vendor import LocalVendor

    with LocalVendor() as vendor:
        yield vendor


@pytest.fixture
def coatcheck_transport() -> "Iterator[RequestsTransport]":
    """Return the default transport; its connections are closed after the test."""
    from coatcheck.transport import RequestsTransport

    with RequestsTransport() as transport:
        yield transport
