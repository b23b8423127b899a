"""What the video package registers, and what it says and does not do while it is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

import coatcheck
from coatcheck import Registry
from coatcheck.handler import resolve
from coatcheck.sandbox import VendorSandbox
from coatcheck_video.handler import VideoHandler
from coatcheck_video.model import VideoRequest
from coatcheck_video.plugin import VENDORS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The page of a vendor whose other package has a page of that name, too.
PAGES = {"video:gitee": "gitee-video"}


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Return what the installed plugins register."""
    registry = Registry()
    coatcheck.load_plugins(registry, strict=True)
    return registry


def page_of(vendor: type[VideoHandler]) -> str:
    """Return the name of a vendor's page."""
    return f"{PAGES.get(vendor.key, vendor.key.removeprefix('video:'))}.md"


@pytest.mark.parametrize("vendor", [vendor for vendor, _ in VENDORS], ids=lambda vendor: str(vendor.key))
def test_every_vendor_has_a_handler_and_a_sandbox(registry: Registry, vendor: type[VideoHandler]) -> None:
    """Whoever has no account can try each of them."""
    handler = registry.handler(vendor.key).handler
    assert isinstance(handler, vendor)
    assert resolve(handler).params_type is VideoRequest
    sandbox = registry.sandbox(vendor.key)
    assert isinstance(sandbox, VendorSandbox)
    variables = sandbox.environment("http://127.0.0.1:9/here")
    assert any(value.startswith("http://127.0.0.1:9/here") for value in variables.values())


@pytest.mark.parametrize("vendor", [vendor for vendor, _ in VENDORS], ids=lambda vendor: str(vendor.key))
def test_every_vendor_has_a_page_with_its_options_and_variables(vendor: type[VideoHandler]) -> None:
    """The first page leads to the vendor's, the package's own page names all that has to be set."""
    page = (DOCS / "vendors" / page_of(vendor)).read_text("utf-8")
    options = vendor.options_type
    assert f".. autoclass:: {options.__module__}.{options.__name__}\n" in page
    assert f"](vendors/{page_of(vendor)})" in (DOCS / "index.md").read_text("utf-8")
    readme = (ROOT / "packages" / "provider-video" / "README.md").read_text("utf-8")
    (row,) = [line for line in readme.splitlines() if line.startswith(f"| `{vendor.key}` |")]
    customary = [name for names in vendor.account_env.values() for name in names]
    own = f"COATCHECK_{vendor.key.upper().replace(':', '_').replace('-', '_')}_URL"
    for variable in (*customary, *vendor.base_url_env, own):
        assert f"`{variable}`" in row
    assert own in page
    if hasattr(vendor, "read_callback"):
        assert f"`{vendor.key}`" in (DOCS / "how-to" / "receive-callbacks.md").read_text("utf-8")


def test_loading_the_plugin_imports_neither_sandboxes_nor_what_signs() -> None:
    """A process that only submits or lists starts quickly, and works without the extras."""
    heavy = ["coatcheck.sandbox", "coatcheck_video.sandbox", "coatcheck_video.demo", "cryptography", "jwt"]
    code = f"import sys, coatcheck_video.plugin; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
