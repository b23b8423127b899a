"""What this package registers with coatcheck: hook implementations only, no handler code."""

from coatcheck import Registry, hookimpl
from coatcheck_ocr.cli import demo
from coatcheck_ocr.gitee import GiteeHandler
from coatcheck_ocr.local.handler import LocalOcrHandler
from coatcheck_ocr.sandbox.gitee import GiteeSandbox

coatcheck_api = 1


@hookimpl
def coatcheck_register_handlers(registry: Registry) -> None:
    """Register the handlers of this package; their request type comes with them."""
    registry.add_handler(LocalOcrHandler())
    registry.add_handler(GiteeHandler())


@hookimpl
def coatcheck_register_sandboxes(registry: Registry) -> None:
    """Register the vendors that can be tried on this machine."""
    registry.add_sandbox(GiteeHandler.key, GiteeSandbox)


@hookimpl
def coatcheck_register_commands(registry: Registry) -> None:
    """Register ``coatcheck demo``."""
    registry.add_command(demo)
