"""What this package registers with coatcheck: hook implementations only, no handler code."""

from functools import partial
from importlib import import_module
from typing import Any

from coatcheck import Registry, hookimpl
from coatcheck_video.aliyun_happyhorse import AliyunHappyHorseHandler
from coatcheck_video.aliyun_wan import AliyunWanHandler
from coatcheck_video.cli import demo_video
from coatcheck_video.fal import FalHandler
from coatcheck_video.gitee import GiteeHandler
from coatcheck_video.kling import KlingHandler
from coatcheck_video.replicate import ReplicateHandler
from coatcheck_video.runway import RunwayHandler
from coatcheck_video.volcengine import VolcengineHandler

coatcheck_api = 1

#: The vendors' handlers, and where their protocols are: those are imported by whoever serves them.
VENDORS = (
    (AliyunWanHandler, "coatcheck_video.sandbox.aliyun:AliyunWanSandbox"),
    (AliyunHappyHorseHandler, "coatcheck_video.sandbox.aliyun:AliyunHappyHorseSandbox"),
    (ReplicateHandler, "coatcheck_video.sandbox.replicate:ReplicateSandbox"),
    (VolcengineHandler, "coatcheck_video.sandbox.volcengine:VolcengineSandbox"),
    (FalHandler, "coatcheck_video.sandbox.fal:FalSandbox"),
    (GiteeHandler, "coatcheck_video.sandbox.gitee:GiteeSandbox"),
    (RunwayHandler, "coatcheck_video.sandbox.runway:RunwaySandbox"),
    (KlingHandler, "coatcheck_video.sandbox.kling:KlingSandbox"),
)


@hookimpl
def coatcheck_register_handlers(registry: Registry) -> None:
    """Register the handlers of this package; their request type comes with them."""
    for handler, _ in VENDORS:
        registry.add_handler(handler())


@hookimpl
def coatcheck_register_sandboxes(registry: Registry) -> None:
    """Register the vendors that can be tried on this machine."""
    for handler, place in VENDORS:
        registry.add_sandbox(handler.key, partial(_made, place))


def _made(place: str, **options: Any) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)(**options)


@hookimpl
def coatcheck_register_commands(registry: Registry) -> None:
    """Register ``coatcheck demo-video``."""
    registry.add_command(demo_video)
