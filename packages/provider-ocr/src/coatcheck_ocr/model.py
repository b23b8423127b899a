"""What every OCR handler takes and gives: one request type, one response type, and what they are made of.

Vendors differ in ``OcrRequest.options`` only. Nothing here reads a document or calls a vendor.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

from coatcheck.codec import persistent
from coatcheck.errors import ValidationError

_PAGES = re.compile(r"[1-9]\d{0,6}(-[1-9]\d{0,6})?(,[1-9]\d{0,6}(-[1-9]\d{0,6})?)*")


def _frozen(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValidationError(f"expected a mapping with texts as keys, found {value!r}")
    return MappingProxyType(_copied(value))


def _copied(value: Any) -> Any:
    """Copy what JSON knows; all else stays as it is, and is refused with its path at the submit."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value


def _words(value: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValidationError(
            f'languages must be a tuple of texts, found {value!r}; write languages=("zh", "en")', "languages"
        )
    return tuple(value)


def _is_pages(value: object) -> bool:
    if not isinstance(value, str) or not _PAGES.fullmatch(value):
        return False
    ends = (part.partition("-") for part in value.split(","))
    return all(int(first) <= int(last or first) for first, _, last in ends)


@persistent("ocr.request", version=1)
@frozen(kw_only=True)
class OcrRequest:
    """One document to be read.

    Raises:
        ValidationError: the URL has no scheme, or the pages are not written like ``"1-3,7"``.
    """

    #: Where the document is: ``https://…``, or ``file:///…`` for a handler on this machine.
    url: str
    #: What to call the document; by default the last part of the URL's path.
    file_name: str | None = None
    #: The vendor's model; its default if ``None``.
    model: str | None = None
    #: Which pages, counted from 1, like ``"1-3,7"``; all if ``None``.
    pages: str | None = None
    #: Languages to expect, like ``("zh", "en")``: a hint that a handler may ignore.
    languages: tuple[str, ...] = field(default=(), converter=_words)
    #: The vendor's own extras, named as the handler documents them.
    options: Mapping[str, Any] = field(factory=dict, converter=_frozen)

    def __attrs_post_init__(self) -> None:
        """Refuse what no handler could use."""
        if not isinstance(self.url, str) or not urlsplit(self.url).scheme:
            raise ValidationError(
                f"url must be a URL with a scheme, found {self.url!r}; write https://… "
                "or Path(…).absolute().as_uri() for a file",
                "url",
            )
        if self.pages is not None and not _is_pages(self.pages):
            raise ValidationError(f'pages must be written like "1-3,7", found {self.pages!r}', "pages")

    @property
    def name(self) -> str:
        """What to call the document: ``file_name``, else the last part of the URL's path."""
        return self.file_name or urlsplit(self.url).path.rpartition("/")[2] or "document"


@persistent("ocr.page", version=1)
@frozen(kw_only=True)
class OcrPage:
    """One page of the document, in reading order."""

    #: Counted from 1, in the document.
    number: int
    markdown: str
    text: str = ""
    #: Size in pixels, standing upright.
    width: int | None = None
    height: int | None = None
    #: How far the page was turned clockwise to stand upright, in degrees.
    turned: int = 0
    #: How sure the vendor is, from 0 to 1.
    confidence: float | None = None


@persistent("ocr.resource", version=1)
@frozen(kw_only=True)
class OcrResource:
    """Something that the vendor offers for download."""

    #: ``"markdown"``, ``"json"``, ``"archive"``, or the vendor's own word.
    type: str
    url: str
    metadata: Mapping[str, Any] = field(factory=dict, converter=_frozen)


@persistent("ocr.response", version=1)
@frozen(kw_only=True)
class OcrResponse:
    """What became of a document."""

    #: The whole document as markdown.
    markdown: str
    #: The whole document as plain text.
    text: str = ""
    #: One entry per page, where the vendor tells pages apart.
    pages: tuple[OcrPage, ...] = ()
    resources: tuple[OcrResource, ...] = ()
    #: What the vendor counts, like ``{"page": 3}``.
    usage: Mapping[str, int] = field(factory=dict, converter=_frozen)
    #: The vendor's own facts about the job.
    metadata: Mapping[str, Any] = field(factory=dict, converter=_frozen)

    def __str__(self) -> str:
        """Return what a person wants to read: the markdown."""
        return self.markdown


def page_numbers(pages: str | None, count: int) -> list[int]:
    """Return the numbers that ``pages`` selects from ``count`` pages, sorted and without repeats.

    Numbers beyond the end are left out, so that ``"1-9999"`` means "all".
    """
    if pages is None:
        return list(range(1, count + 1))
    chosen: set[int] = set()
    for part in pages.split(","):
        first, _, last = part.partition("-")
        chosen.update(range(int(first), min(int(last or first), count) + 1))
    return sorted(chosen)
