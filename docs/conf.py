"""Settings of Sphinx: what is read, how references are checked, and how it looks. No page is written here."""

from importlib.metadata import version as installed
from typing import Any

from sphinx.application import Sphinx

project = "coatcheck"
author = "the coatcheck contributors"
copyright = author  # noqa: A001  # the name that Sphinx reads
release = installed("coatcheck")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
# The kit's own requirements; a build of the pages runs no test.
autodoc_mock_imports = ["hypothesis", "pytest"]
# Names without their modules: a signature is read by people who have `import coatcheck`.
add_module_names = False
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

nitpicky = True
nitpick_ignore_regex = [
    # The build needs no network, so the pages of other projects cannot be linked to.
    (
        r"py:.*",
        r"(abc|click|collections|datetime|enum|logging|os|pathlib|pluggy|pytest|random|requests|types|typing)\b.*",
    ),
    # The tables of a description are explained on a page of their own.
    (r"py:class", r"coatcheck\.descriptor\.tables\..*|DescribedHandler"),
    # What a handler holds and nobody calls; a provider's types are shown by its own pages.
    (r"py:class", r"coatcheck\.http\.tokens\.TokenCache|coatcheck_ocr\.model\..*"),
    # Type variables have no page.
    (r"py:class", r"coatcheck\.(handler\.P|codec\.value\.C|http\.vendor\.[JQ])"),
]

html_theme = "furo"
html_title = "coatcheck"
html_copy_source = False


def find_exported(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve a bare name, as docstrings write it, to the name that ``coatcheck`` exports."""
    if node.get("refdomain") != "py" or "." in node["reftarget"]:
        return None
    return env.get_domain("py").resolve_xref(
        env, node["refdoc"], app.builder, "obj", f"coatcheck.{node['reftarget']}", node, contnode
    )


def keep_sentences(*event: Any) -> None:
    """Keep napoleon from reading "the reason: …" above an attribute as a type and its description."""
    _, what, _, _, _, lines = event
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment, which is nobody's type


def setup(app: Sphinx) -> None:
    """Connect what is defined here."""
    app.connect("missing-reference", find_exported)
    app.connect("autodoc-process-docstring", keep_sentences, priority=400)
