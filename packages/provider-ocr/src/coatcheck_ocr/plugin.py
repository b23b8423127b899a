"""What this package registers with coatcheck: hook implementations only, no handler code."""

from coatcheck import Registry, hookimpl
from coatcheck_ocr.cli import demo
from coatcheck_ocr.local.handler import LocalOcrHandler

coatcheck_api = 1


@hookimpl
def coatcheck_register_handlers(registry: Registry) -> None:
    """Register the handlers of this package; their request type comes with them."""
    registry.add_handler(LocalOcrHandler())


@hookimpl
def coatcheck_register_commands(registry: Registry) -> None:
    """Register ``coatcheck demo``."""
    registry.add_command(demo)
