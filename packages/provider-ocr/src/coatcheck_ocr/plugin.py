"""What this package registers with coatcheck: hook implementations only, no handler code."""

from functools import partial
from importlib import import_module
from typing import Any

from coatcheck import Registry, hookimpl
from coatcheck_ocr.azure_di import AzureHandler
from coatcheck_ocr.baidu import BaiduHandler
from coatcheck_ocr.cli import demo
from coatcheck_ocr.docling import DoclingHandler
from coatcheck_ocr.gitee import GiteeHandler
from coatcheck_ocr.local.handler import LocalOcrHandler
from coatcheck_ocr.mineru import MinerUAgentHandler, MinerUHandler
from coatcheck_ocr.mineru_local import MinerULocalHandler, MinerUV3Handler
from coatcheck_ocr.paddleocr import PaddleHandler
from coatcheck_ocr.textract import TextractHandler

coatcheck_api = 1

#: The vendors' handlers, and where their protocols are: those are imported by whoever serves them.
VENDORS = (
    (GiteeHandler, "coatcheck_ocr.sandbox.gitee:GiteeSandbox"),
    (BaiduHandler, "coatcheck_ocr.sandbox.baidu:BaiduSandbox"),
    (MinerUHandler, "coatcheck_ocr.sandbox.mineru:MinerUSandbox"),
    (MinerUAgentHandler, "coatcheck_ocr.sandbox.mineru:MinerUAgentSandbox"),
    (MinerULocalHandler, "coatcheck_ocr.sandbox.mineru_local:MinerULocalSandbox"),
    (MinerUV3Handler, "coatcheck_ocr.sandbox.mineru_local:MinerUV3Sandbox"),
    (PaddleHandler, "coatcheck_ocr.sandbox.paddleocr:PaddleSandbox"),
    (AzureHandler, "coatcheck_ocr.sandbox.azure_di:AzureSandbox"),
    (DoclingHandler, "coatcheck_ocr.sandbox.docling:DoclingSandbox"),
    (TextractHandler, "coatcheck_ocr.sandbox.textract:TextractSandbox"),
)


@hookimpl
def coatcheck_register_handlers(registry: Registry) -> None:
    """Register the handlers of this package; their request type comes with them."""
    registry.add_handler(LocalOcrHandler())
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
    """Register ``coatcheck demo``."""
    registry.add_command(demo)
