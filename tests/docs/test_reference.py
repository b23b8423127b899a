"""The reference names everything that there is, and what pages cite exists."""

import importlib.util
import inspect
import re
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import coatcheck
from coatcheck import config, errors, hookspecs, http
from coatcheck.cli import app
from coatcheck.errors import CoatcheckError
from coatcheck.http.table import check
from coatcheck.registry import Registry
from coatcheck.testing import pytest_plugin

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def page(name: str) -> str:
    """Return the text of a page."""
    return (DOCS / name).read_text("utf-8")


def in_tables(text: str) -> set[str]:
    """Return what stands between backticks in the first two columns of tables."""
    cells = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|")[1:3]]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def documented(text: str) -> set[str]:
    """Return the last part of every name that autodoc puts on a page."""
    return {name.rpartition(".")[2] for name in re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE)}


def load_generator() -> ModuleType:
    """Import ``docs/generate.py``."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_generated_parts_are_fresh(path: Path) -> None:
    """Tables and help texts say what the code says; ``python docs/generate.py`` rewrites them."""
    text = path.read_text("utf-8")
    # Versions of click fold their help at different places.
    assert load_generator().fresh(text).split() == text.split()


def test_every_generated_part_is_on_a_page() -> None:
    """A part that no page shows is of no use."""
    used = {
        name
        for path in PAGES
        for name in re.findall(r"<!-- generated: ([\w-]+) -->", path.read_text("utf-8"))
    }
    assert used == set(load_generator().PARTS)


def test_every_hook_is_in_the_reference() -> None:
    """Its arguments and promises come from the spec itself."""
    hooks = {name for name in vars(hookspecs) if name.startswith("coatcheck_")}
    assert documented(page("reference/hooks.md")) - {"hookimpl"} == hooks


def test_every_error_is_in_the_reference() -> None:
    """People look up what they caught."""
    classes = {
        name for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, CoatcheckError)
    }
    assert documented(page("reference/errors.md")) == classes


def test_every_public_name_is_in_the_reference() -> None:
    """What ``coatcheck`` exports is documented on one of the pages."""
    names = {"reference/api.md", "reference/errors.md", "reference/hooks.md"}
    found = set().union(*(documented(page(name)) for name in names))
    assert set(coatcheck.__all__) - {"__version__"} <= found


def test_every_setting_is_in_the_reference() -> None:
    """Keys of the file and variables of the environment, none missing and none invented."""
    text = page("reference/configuration.md")
    found = in_tables(text)
    tables = (config.Config, config.WorkerConfig, config.PluginConfig)
    keys = {attribute.name for table in tables for attribute in attrs.fields(table)} - {"path"}
    keys |= {"provider", "account", "tenant", "side", "rate", "live"}
    assert keys <= found
    variables = {*config._VARIABLES, *config._OTHERS}
    assert variables <= found
    others = {"COATCHECK_TRACEBACK", "COATCHECK_OCR_SPOOL"}
    # A provider's own variables are no settings of the core.
    ours = {name for name in found if name.startswith("COATCHECK_") and not name.endswith("_URL")}
    assert ours == variables | others


def test_every_selector_of_the_settings_is_in_the_reference() -> None:
    """A name that can be written into the file is documented with its options."""
    registry = Registry()
    coatcheck.load_plugins(registry)
    assert set(registry.names("selector")) <= in_tables(page("reference/configuration.md"))


def test_every_exit_code_is_in_the_reference() -> None:
    """Scripts rely on them."""
    codes = {value for name, value in vars(app).items() if name.isupper() and isinstance(value, int)}
    table = re.findall(r"^\| (\d+) \|", page("reference/command-line.md"), re.MULTILINE)
    assert {int(code) for code in table} == codes


def test_table_of_replies_says_what_is_raised() -> None:
    """The statuses on the page come to what the page says, on submit and on query."""
    rows = re.findall(r"^\| ([345]\d\d.*?) \| (.*?) \| (.*?) \|$", page("reference/errors.md"), re.MULTILINE)
    assert len(rows) == 6
    for replies, *columns in rows:
        for status in map(int, re.findall(r"\d{3}", replies)):
            headers = {"Retry-After": "5"} if status == 503 else {}
            for creating, said in zip((True, False), columns, strict=True):
                with pytest.raises(errors.HandlerError) as caught:
                    check(
                        http.Reply(status, headers=headers),
                        http.Call("GET", "/jobs"),
                        creating=creating,
                        now=datetime(2026, 3, 1, tzinfo=UTC),
                    )
                named = re.match(r"`(\w+)`", said)
                assert type(caught.value).__name__ == (named[1] if named else "VendorError"), (status, said)


def test_every_fixture_is_in_the_reference() -> None:
    """A fixture that nobody knows of is of no use."""
    fixtures = {name for name in vars(pytest_plugin) if name.startswith("coatcheck_")}
    assert fixtures <= in_tables(page("reference/testing.md"))


def test_guarantees_are_held_by_tests_that_exist() -> None:
    """Each of the ten promises names tests, and each of these can be run."""
    _, *sections = re.split(r"^## ", page("explanation/guarantees.md"), flags=re.MULTILINE)
    assert [section.partition("\n")[0] for section in sections] == [f"G{number}" for number in range(1, 11)]
    for section in sections:
        cited = re.findall(r"^- `(\S+)::(\w+)`$", section, re.MULTILINE)
        assert cited, section
        for file, name in cited:
            assert re.search(rf"^ *(def|class) {name}\b", (ROOT / file).read_text("utf-8"), re.MULTILINE), (
                file,
                name,
            )


def test_glossary_is_in_order_and_says_each_word_once() -> None:
    """Words are found by their place."""
    words = re.findall(r"^(\S.*)\n: ", page("reference/glossary.md"), re.MULTILINE)
    assert words == sorted(set(words))


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(path: Path) -> None:
    """Pages are read in the repository too, where nothing else checks their links."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target
