"""The shape of the workspace: versions, markers and the doors between packages."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "core": "coatcheck",
    "provider-ocr": "coatcheck_ocr",
    "provider-video": "coatcheck_video",
    "store-redis": "coatcheck_redis",
}
#: Modules of core that are its own business, or its users' tests'; all others are public.
INNER = (["plugins"], ["step"], ["stores"], ["testing"])
OUTSIDE_CORE = [folder for folder in PACKAGES if folder != "core"]


def load(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return tomllib.loads(path.read_text("utf-8"))


def project(folder: str) -> dict[str, Any]:
    """Return the ``project`` table of one package."""
    table: dict[str, Any] = tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    return table


def source(folder: str) -> Path:
    """Return the folder that holds a package's modules."""
    return ROOT / "packages" / folder / "src" / PACKAGES[folder]


def core_imports(path: Path) -> Iterator[str]:
    """Yield the dotted names below ``coatcheck`` that a module imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "coatcheck")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "coatcheck":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_in_packages_is_a_known_package() -> None:
    """A new package is added to the checks of this file, not forgotten by them."""
    found = {path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml")}
    assert found == set(PACKAGES)


def test_all_packages_have_the_same_version() -> None:
    """Packages are released together until 1.0, and the changelog speaks of that one version."""
    versions = {folder: project(folder)["version"] for folder in PACKAGES}
    towncrier = load(ROOT / "pyproject.toml")["tool"]["towncrier"]["version"]
    assert set(versions.values()) == {towncrier}, versions


@pytest.mark.parametrize("folder", OUTSIDE_CORE)
def test_packages_accept_a_range_of_core_versions(folder: str) -> None:
    """A fix release of core reaches users without a release of every package."""
    (requirement,) = [r for r in project(folder)["dependencies"] if r.startswith("coatcheck")]
    assert ">=" in requirement
    assert ",<" in requirement
    assert "==" not in requirement


@pytest.mark.parametrize("folder", PACKAGES)
def test_packages_ship_their_types_licence_and_readme(folder: str) -> None:
    """Type checkers of users read our annotations, and each wheel carries its licence."""
    assert (source(folder) / "py.typed").is_file()
    assert (ROOT / "packages" / folder / "README.md").is_file()
    assert (ROOT / "packages" / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("folder", OUTSIDE_CORE)
def test_packages_import_only_public_names_of_core(folder: str) -> None:
    """What providers and stores use is public, so that third parties can do the same."""
    private = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(source(folder).rglob("*.py"))
        for name in core_imports(path)
        if name.split(".")[1:2] in INNER or any(part.startswith("_") for part in name.split("."))
    ]
    assert private == []


@pytest.mark.parametrize("folder", OUTSIDE_CORE)
def test_plugin_modules_state_their_api(folder: str) -> None:
    """The loader refuses a plugin that does not say which plugin API it was written for."""
    tree = ast.parse((source(folder) / "plugin.py").read_text("utf-8"))
    stated = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["coatcheck_api"]
    ]
    assert stated == [1]
