"""What the OCR package registers, and what it does not do while it is loaded."""

import subprocess
import sys

from coatcheck import Registry, load_plugins
from coatcheck_ocr import OcrRequest


def test_the_plugin_brings_the_local_handler() -> None:
    """Installing the package is enough to have ``ocr:local``."""
    registry = Registry()
    load_plugins(registry, strict=True)

    assert registry.handler("ocr:local").params_type is OcrRequest


def test_loading_the_plugin_imports_no_engine() -> None:
    """A process that only submits or lists starts quickly, and works without the extra."""
    heavy = ["rapidocr", "onnxruntime", "cv2", "numpy", "PIL", "pypdfium2"]
    code = f"import sys, coatcheck_ocr.plugin; print([name for name in {heavy} if name in sys.modules])"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
