"""The request and response types of the OCR package: what they refuse, and that they survive being stored."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import codec
from coatcheck.errors import NotPersistableError, ValidationError
from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResource, OcrResponse, page_numbers

REQUEST = OcrRequest(
    url="https://example.com/papers/a%20b.pdf?x=1",
    model="big",
    pages="1-3,7",
    languages=("zh", "en"),
    options={"layout": {"tables": [True, None, 1.5]}},
)
RESPONSE = OcrResponse(
    markdown="# 标题",
    text="标题",
    pages=(
        OcrPage(number=1, markdown="# 标题", text="标题", width=10, height=20, turned=90, confidence=0.5),
    ),
    resources=(OcrResource(type="archive", url="https://example.com/a.zip", metadata={"size": 3}),),
    usage={"page": 1},
    metadata={"raw": {"deep": ["x"]}},
)


@pytest.mark.parametrize("value", [REQUEST, RESPONSE], ids=["request", "response"])
def test_values_survive_being_stored(value: object) -> None:
    """What comes back from a store equals what went in, down to the nested records and mappings."""
    assert codec.decode_value(codec.encode_value(value, field="params", cap=10_000)) == value


def test_a_response_reads_as_its_markdown() -> None:
    """Whoever prints a result sees the text of the document, not its fields."""
    assert str(RESPONSE) == "# 标题"


def test_a_request_is_frozen_all_the_way_down() -> None:
    """Changing the dict that the options came from changes nothing in a request."""
    options = {"layout": {"tables": True}}
    request = OcrRequest(url="https://example.com/a.pdf", options=options)

    options["layout"]["tables"] = False

    assert request.options == {"layout": {"tables": True}}
    with pytest.raises(TypeError):
        request.options["layout"] = None  # type: ignore[index]  # that is the point


@pytest.mark.parametrize("options", [None, "dpi=200", [("dpi", 200)], io.StringIO()])
def test_options_are_a_mapping(options: object) -> None:
    """What only turns into a mapping by chance is refused: an empty file would count as no options."""
    with pytest.raises(ValidationError, match="mapping"):
        OcrRequest(url="https://example.com/a.pdf", options=options)  # type: ignore[arg-type]  # on purpose


def test_an_open_file_in_the_options_is_refused_with_its_place() -> None:
    """The request itself may be made; the check before the store says where the file is, and what to do."""
    request = OcrRequest(url="https://example.com/a.pdf", options={"mask": [io.BytesIO()]})

    with pytest.raises(NotPersistableError, match=r"options.*mask.*upload"):
        codec.check_request(request, local_files=True)


@pytest.mark.parametrize("url", ["", "   ", "scan.pdf", "/tmp/scan.pdf", None, 7])
def test_a_url_needs_a_scheme(url: object) -> None:
    """A bare path is refused with the way to write it as a URL."""
    with pytest.raises(ValidationError, match="as_uri"):
        OcrRequest(url=url)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("pages", ["", "0", "1-", "-3", "3-1", "1, 2", "a", "1--2", 3, ["1"]])
def test_pages_have_one_notation(pages: object) -> None:
    """Pages that cannot be read are refused before anything is stored."""
    with pytest.raises(ValidationError, match="pages"):
        OcrRequest(url="https://example.com/a.pdf", pages=pages)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("languages", ["en", io.StringIO("en"), b"en", ["en", 1], {"en"}, None])
def test_languages_are_several_texts(languages: object) -> None:
    """A single text would be taken apart into letters, an open file be read."""
    with pytest.raises(ValidationError, match=r'write languages=\("zh", "en"\)'):
        OcrRequest(url="https://example.com/a.pdf", languages=languages)  # type: ignore[arg-type]  # on purpose


def test_the_name_comes_from_the_url_if_nobody_says_it() -> None:
    """A display name is always there, without query or folders."""
    assert REQUEST.name == "a%20b.pdf"
    assert OcrRequest(url="https://example.com/", file_name="x.png").name == "x.png"
    assert OcrRequest(url="https://example.com").name == "document"


def test_page_numbers_are_chosen_sorted_and_once() -> None:
    """Ranges may overlap, stand in any order and reach beyond the end."""
    assert page_numbers(None, 3) == [1, 2, 3]
    assert page_numbers("3,1-2,2", 5) == [1, 2, 3]
    assert page_numbers("2-9999999", 4) == [2, 3, 4]
    assert page_numbers("9", 4) == []


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(0, 60))
def test_listed_pages_are_the_chosen_ones(numbers: set[int], count: int) -> None:
    """Every listed page that exists is chosen, and no other."""
    pages = ",".join(map(str, numbers))

    assert OcrRequest(url="https://example.com/a", pages=pages).pages == pages
    assert page_numbers(pages, count) == sorted(number for number in numbers if number <= count)
