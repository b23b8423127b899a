"""What a person types after ``coatcheck submit`` becomes a request, or a message that helps."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from attrs import field, frozen

from coatcheck.cli.request import read_request, request_type
from coatcheck.codec import persistent
from coatcheck.errors import RequestError, UnknownNameError, ValidationError


class Size(StrEnum):
    """Sizes."""

    SMALL = "small"
    LARGE = "large"


@persistent("test.cli.part")
@frozen
class Part:
    """Something inside a request."""

    name: str


@persistent("test.cli.film")
@frozen(kw_only=True)
class Film:
    """A request with a field of each kind."""

    url: str
    size: Size = Size.SMALL
    mode: Literal["fast", "good"] = "good"
    seconds: int | None = None
    strength: float = 1.0
    is_loud: bool = False
    tags: tuple[str, ...] = ()
    at: datetime | None = None
    length: timedelta | None = None
    part: Part | None = None
    _hidden: str = field(default="", alias="hidden_alias")


@persistent("test.cli.images")
@frozen
class Images:
    """A request whose only URLs are a list."""

    image_urls: list[str]


@persistent("test.cli.prompt")
@frozen
class Prompt:
    """A request with one required field that is no URL by name."""

    source: str
    copy: int = 1


@persistent("test.cli.pair")
@frozen
class Pair:
    """A request for which a bare URL says too little."""

    first_url: str
    second_url: str


@persistent("test.cli.strict")
@frozen
class Strict:
    """A request that checks itself with other exceptions than ours."""

    number: int = field(default=1)

    def __attrs_post_init__(self) -> None:
        """Refuse what is too small."""
        if self.number < 1:
            raise ValueError("number is too small")


URL = "https://example.com/a.pdf?page=1&x=2"


@pytest.mark.parametrize(
    ("cls", "words", "expected"),
    [
        (Film, [URL], Film(url=URL)),
        (Film, [f"url={URL}"], Film(url=URL)),
        (Film, [URL, "size=large", "mode=fast"], Film(url=URL, size=Size.LARGE, mode="fast")),
        (
            Film,
            [URL, "seconds=5", "strength=2", "is_loud=true"],
            Film(url=URL, seconds=5, strength=2.0, is_loud=True),
        ),
        (Film, [URL, "seconds=null"], Film(url=URL)),
        (Film, [URL, "tags=one"], Film(url=URL, tags=("one",))),
        (Film, [URL, 'tags=["a", "b"]'], Film(url=URL, tags=("a", "b"))),
        (Film, [URL, "at=2030-01-01T00:00:00Z"], Film(url=URL, at=datetime(2030, 1, 1, tzinfo=UTC))),
        (Film, [URL, "length=90"], Film(url=URL, length=timedelta(seconds=90))),
        (Film, [URL, "_hidden=x"], Film(url=URL, hidden_alias="x")),
        (Images, [URL], Images([URL])),
        (Prompt, [URL, "copy=2"], Prompt(URL, 2)),
        (Prompt, ["source=a cat"], Prompt("a cat")),
        (Pair, [f"first_url={URL}", "second_url=b"], Pair(URL, "b")),
        (Strict, [], Strict()),
    ],
)
def test_words_become_a_request(cls: type, words: list[str], expected: object) -> None:
    """URLs, pairs and JSON are read by the types of the fields."""
    assert read_request(cls, words) == expected


def test_nested_types_are_read_from_json_envelopes() -> None:
    """A registered class inside a request is written as it is stored."""
    part = '{"type": "test.cli.part", "version": 1, "data": {"name": "n"}}'
    assert read_request(Film, [URL, f"part={part}"]) == Film(url=URL, part=Part("n"))


@pytest.mark.parametrize(
    ("cls", "words", "message"),
    [
        (Film, [], r"needs url=…; its fields are url, size"),
        (Film, [URL, "size=huge"], "size"),
        (Film, [URL, "mode=slow"], "mode"),
        (Film, [URL, "seconds=5.5"], "seconds"),
        (Film, [URL, "is_loud=yes"], "is_loud"),
        (Film, [URL, "at=2030-01-01T00:00:00"], "at: found a naive datetime"),
        (Film, [URL, '{"tags": "one"}'], "tags"),
        (Film, [URL, '{"tags": [1]}'], r"tags\[0\]"),
        (Pair, [URL], "no single field for a URL"),
        (Strict, ["number=0"], "refuses these values: number is too small"),
        (Strict, ["{]"], "is not JSON"),
        (Strict, ["5"], "expected name=value"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field(cls: type, words: list[str], message: str) -> None:
    """The message names the field, and what was found."""
    with pytest.raises(ValidationError, match=message):
        read_request(cls, words)


def test_local_file_in_place_of_a_url_is_explained(tmp_path: Path) -> None:
    """The likeliest slip gets the three ways out of it."""
    file = tmp_path / "scan.pdf"
    file.write_bytes(b"%PDF")
    with pytest.raises(ValidationError, match="is a local file; upload it") as caught:
        read_request(Film, [str(file)])
    assert file.as_uri() in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A missing file and one that is no text are refused."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "binary"):
        with pytest.raises(ValidationError, match=f"{name} cannot be read"):
            read_request(Film, [f"@{tmp_path / name}"])


def test_unknown_fields_and_types_get_the_closest_name() -> None:
    """Misspelt names are found."""
    with pytest.raises(UnknownNameError, match="did you mean 'seconds'"):
        read_request(Film, [URL, "second=5"])
    with pytest.raises(UnknownNameError, match=r"did you mean 'test\.cli\.film'"):
        request_type("test.cli.flim")
    assert request_type("test.cli.film") is Film


def test_errors_of_the_class_pass_as_they_are() -> None:
    """A class that refuses with our own errors is not wrapped."""

    @persistent("test.cli.own")
    @frozen
    class Own:
        x: Any = None

        def __attrs_post_init__(self) -> None:
            raise RequestError("not today")

    with pytest.raises(RequestError, match=r"^not today$"):
        read_request(Own, [])
