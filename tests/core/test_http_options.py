"""Options of vendors: strict, stored as plain values, and named as the vendor wants them."""

from typing import Any

import pytest
from attrs import frozen

from coatcheck import codec
from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck.http import VendorOptions
from coatcheck.http.options import choice, number, switch, text, whole, words


@frozen(kw_only=True, eq=False)
class Options(VendorOptions):
    """One of each kind."""

    tables: bool | None = switch("useTables")
    last: int | None = whole(1, 9)
    sure: float | None = number(0, 1)
    prompt: str | None = text(5)
    format: str | None = choice("md", "html")
    languages: tuple[str, ...] | None = words()
    parts: tuple[str, ...] | None = words("table", "form", wire="FeatureTypes")


def test_options_are_stored_with_a_request_as_plain_values() -> None:
    """Another machine, and a later version, reads them as a mapping; what was not given is not stored."""
    options = Options(tables=False, parts=("table",), extra={"n": [1]})
    stored = codec.loads(codec.dumps(dict(options)))
    assert stored == {"tables": False, "parts": ["table"], "extra": {"n": [1]}}
    assert Options.of(stored, "ocr:x") == options
    assert len(options) == 3
    with pytest.raises(KeyError):
        options["last"]


def test_the_vendor_gets_its_own_names_over_what_is_extra() -> None:
    """A field that this version knows counts, however it was given a second time."""
    options = Options(tables=True, last=2, parts=("form",), extra={"useTables": "no", "new": 1})
    assert options.wire() == {"useTables": True, "new": 1, "last": 2, "FeatureTypes": ("form",)}


def test_a_name_that_nobody_knows_is_refused_with_the_closest() -> None:
    """What is newer than this version has a place of its own."""
    with pytest.raises(UnknownNameError, match=r"option of ocr:x 'table'; did you mean 'tables'.*extra="):
        Options.of({"table": True}, "ocr:x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tables", 1),
        ("tables", "true"),
        ("last", 10),
        ("last", True),
        ("last", 1.0),
        ("sure", 1.5),
        ("sure", False),
        ("prompt", ""),
        ("prompt", "longer"),
        ("prompt", b"x"),
        ("format", "pdf"),
        ("format", ["md"]),
        ("languages", "en"),
        ("languages", [""]),
        ("parts", ["tables"]),
        ("extra", "x"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, value: Any) -> None:
    """The message names the option and what it takes."""
    with pytest.raises(ValidationError, match=f"{name} must be"):
        Options.of({name: value}, "ocr:x")
