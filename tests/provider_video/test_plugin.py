"""What the video package registers: every vendor with its sandbox, and requests that can be stored."""

import pytest

import coatcheck
from coatcheck import Registry
from coatcheck.handler import resolve
from coatcheck_video.handler import VideoHandler
from coatcheck_video.model import VideoRequest
from coatcheck_video.plugin import VENDORS


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Return what the installed plugins register."""
    registry = Registry()
    coatcheck.load_plugins(registry)
    return registry


@pytest.mark.parametrize("handler", [handler for handler, _ in VENDORS], ids=lambda handler: handler.key)
def test_every_vendor_has_a_handler_and_a_sandbox(registry: Registry, handler: type[VideoHandler]) -> None:
    """Whoever has no account can try each of them."""
    assert handler.key in registry.names("handler")
    assert handler.key in registry.names("sandbox")
    assert resolve(handler()).params_type is VideoRequest
