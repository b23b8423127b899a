"""The installed plugin, as coatcheck sees it."""

from coatcheck_thumbnail import Prefer, ThumbnailHandler, ThumbnailRequest
from coatcheck_thumbnail.sandbox import ThumbnailSandbox

from coatcheck import Registry, load_plugins


def test_installing_the_package_registers_everything() -> None:
    """The entry point is found, and what it leads to can be used."""
    registry = Registry()
    report = load_plugins(registry).report
    (found,) = [one for one in report if one.name == "thumbnail"]
    assert (found.distribution, found.status.value) == ("coatcheck-thumbnail", "loaded")
    (resolved,) = registry.handlers_for(ThumbnailRequest)
    assert isinstance(resolved.handler, ThumbnailHandler)
    assert isinstance(registry.sandbox("thumbnail:example"), ThumbnailSandbox)
    assert isinstance(registry.selector("prefer", keys=["thumbnail:example"]), Prefer)
