"""What this package registers with coatcheck."""

from coatcheck import Registry, hookimpl
from coatcheck_thumbnail.handler import ThumbnailHandler
from coatcheck_thumbnail.sandbox import ThumbnailSandbox
from coatcheck_thumbnail.selector import Prefer

coatcheck_api = 1


@hookimpl
def coatcheck_register_handlers(registry: Registry) -> None:
    """Register the handler; its request type comes with it."""
    registry.add_handler(ThumbnailHandler())


@hookimpl
def coatcheck_register_sandboxes(registry: Registry) -> None:
    """Register the vendor that ``coatcheck sandbox thumbnail:example`` serves on this machine."""
    registry.add_sandbox(ThumbnailHandler.key, ThumbnailSandbox)


@hookimpl
def coatcheck_register_selectors(registry: Registry) -> None:
    """Register what ``selector = { name = "prefer", keys = ["thumbnail:example"] }`` means."""
    registry.add_selector("prefer", Prefer)
