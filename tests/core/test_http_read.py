"""Reading what vendors say, leniently, and writing what they read in forms."""

import pytest

from coatcheck import codec
from coatcheck.errors import VendorError
from coatcheck.http import Part, Reply
from coatcheck.http.form import form_parts, form_text
from coatcheck.http.read import error_of, id_of, members, members_if_any, percent, shortened, whole_of, within
from coatcheck.testing.transport import reply


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"error": {"code": 7, "message": "m"}}, ("7", "m")),
        ({"error": {"type": "t", "message": " m\n n "}}, ("t", "m n")),
        ({"error": "m"}, (None, "m")),
        ({"error": "short", "message": "long"}, (None, "long")),
        ({"error_code": "c", "error_message": "m"}, ("c", "m")),
        ({"code": "c", "msg": "m"}, ("c", "m")),
        ({"detail": "m"}, (None, "m")),
        ({"error": None}, (None, "")),
        ([], (None, "")),
        (None, (None, "")),
    ],
)
def test_errors_are_read_in_the_shapes_that_vendors_have(body: object, found: tuple[str | None, str]) -> None:
    """Parsing an error never raises another."""
    assert error_of(body) == found


def test_a_path_that_ends_early_is_none() -> None:
    """Vendors leave things out."""
    body = {"a": [{"b": 1}]}
    assert within(body, "a", 0, "b") == 1
    assert within(body, "a", -1, "b") == 1
    assert [within(body, *steps) for steps in (("x", "y"), ("a", 1), ("a", "b"), (0,))] == [None] * 4


def test_ids_are_texts_or_whole_numbers() -> None:
    """A blank id, a flag or an object is none."""
    assert id_of({"a": " ", "b": True, "c": 0}, "a", "b", "c") == "0"
    assert id_of({"a": {}}, "a") is None


def test_texts_for_forms_and_errors() -> None:
    """Booleans in small letters; no message of unbounded length."""
    assert [form_text(value) for value in (True, False, 3, "x")] == ["true", "false", "3", "x"]
    assert len(shortened("x" * 5000)) == 1000
    with pytest.raises(VendorError, match="JSON object"):
        members(reply([1]))


def test_multipart_values_repeat_lists_and_write_objects_as_json() -> None:
    """What Python calls a value is nothing that a vendor reads."""
    assert form_parts(7) == Part(content="7")
    assert form_parts(("a", False)) == [Part(content="a"), Part(content="false")]
    assert form_parts({"a": [1]}) == Part(content=codec.dumps({"a": [1]}))


def test_a_refusal_without_an_object_is_an_empty_one() -> None:
    """A proxy may have refused the call, in words of its own."""
    assert members_if_any(reply({"code": 1}, 400)) == {"code": 1}
    assert members_if_any(Reply(502, b"<html>")) == members_if_any(reply([1], 400)) == {}


def test_progress_is_a_percentage_of_whole_numbers_or_none() -> None:
    """A vendor that counts wrongly must not be shown beyond the end; one that counts nothing shows none."""
    body = {"pages": {"done": 3, "all": 4, "bad": "4", "flag": True}}
    assert percent(whole_of(body, "pages", "done"), whole_of(body, "pages", "all")) == 75
    assert [whole_of(body, "pages", name) for name in ("bad", "flag", "none")] == [None, None, None]
    assert (percent(9, 4), percent(-1, 4), percent(1, 0), percent(None, 4), percent(1, None)) == (
        100,
        0,
        None,
        None,
        None,
    )
