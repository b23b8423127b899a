"""What the OCR package registers, and what it does not do while it is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from coatcheck import Registry, load_plugins
from coatcheck.sandbox import VendorSandbox
from coatcheck_ocr import OcrRequest
from coatcheck_ocr.handler import OcrHandler
from coatcheck_ocr.plugin import VENDORS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def registry() -> Registry:
    """Return a registry with this package's plugin."""
    registry = Registry()
    load_plugins(registry, strict=True)
    return registry


def test_the_plugin_brings_the_local_handler(registry: Registry) -> None:
    """Installing the package is enough to have ``ocr:local``."""
    assert registry.handler("ocr:local").params_type is OcrRequest


@pytest.mark.parametrize("vendor", [vendor for vendor, _ in VENDORS], ids=lambda vendor: str(vendor.key))
def test_every_vendor_has_a_handler_a_sandbox_and_a_page(
    vendor: type[OcrHandler], registry: Registry
) -> None:
    """Whoever finds a vendor in the list can try it without an account and read about it."""
    handler = registry.handler(vendor.key).handler
    assert isinstance(handler, vendor)
    sandbox = registry.sandbox(vendor.key)
    assert isinstance(sandbox, VendorSandbox)
    variables = sandbox.environment("http://127.0.0.1:9/here")
    assert any(value.startswith("http://127.0.0.1:9/here") for value in variables.values())
    assert (DOCS / "vendors" / f"{vendor.key.removeprefix('ocr:')}.md").exists()


@pytest.mark.parametrize("vendor", [vendor for vendor, _ in VENDORS], ids=lambda vendor: str(vendor.key))
def test_every_vendor_is_listed_with_its_variables(vendor: type[OcrHandler]) -> None:
    """The package's own page names all that has to be set, and the first page leads to the vendor's."""
    readme = (ROOT / "packages" / "provider-ocr" / "README.md").read_text("utf-8")
    (row,) = [line for line in readme.splitlines() if line.startswith(f"| `{vendor.key}` |")]
    customary = [name for names in vendor.account_env.values() for name in names]
    own = f"COATCHECK_{vendor.key.upper().replace(':', '_').replace('-', '_')}_URL"
    for variable in (*customary, *vendor.base_url_env, own):
        assert f"`{variable}`" in row
    assert f"](vendors/{vendor.key.removeprefix('ocr:')}.md)" in (DOCS / "index.md").read_text("utf-8")


def test_loading_the_plugin_imports_neither_engine_nor_server() -> None:
    """A process that only submits or lists starts quickly, and works without the extra."""
    heavy = [
        "botocore",
        "rapidocr",
        "onnxruntime",
        "cv2",
        "numpy",
        "PIL",
        "pypdfium2",
        "coatcheck.sandbox",
        "requests",
    ]
    code = f"import sys, coatcheck_ocr.plugin; print([name for name in {heavy} if name in sys.modules])"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
