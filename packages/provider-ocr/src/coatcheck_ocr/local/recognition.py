"""Reads a whole document: pages, engine and reading order put together, and the options for it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck_ocr.local import layout
from coatcheck_ocr.local.document import DPI, DocumentError, open_document
from coatcheck_ocr.local.engine import MIN_SCORE, MODEL, Engine
from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResponse, page_numbers


@frozen(kw_only=True)
class LocalOptions:
    """What ``OcrRequest.options`` may hold for ``ocr:local``.

    Raises:
        ValidationError: a value is out of its range.
    """

    #: How finely PDF pages are drawn, in dots per inch, 72 to 400. Small print may want more than the
    #: default.
    dpi: int = DPI
    #: Pieces of text that the engine is less sure of are left out, 0 to 1.
    min_score: float = MIN_SCORE

    def __attrs_post_init__(self) -> None:
        """Check the ranges."""
        for name, low, high in (("dpi", 72, 400), ("min_score", 0, 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValidationError(f"{name} must be a number from {low} to {high}, found {value!r}", name)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "LocalOptions":
        """Read the options of a request.

        Raises:
            UnknownNameError: no option has that name.
            ValidationError: a value is out of its range.
        """
        known = [field.name for field in attrs.fields(cls)]
        for name in options:
            if name not in known:
                raise UnknownNameError.of("option of ocr:local", name, known)
        return cls(**options)


def recognise(
    path: Path,
    request: OcrRequest,
    engine: Engine,
    *,
    on_page: Callable[[int, int], None] = lambda _done, _pages: None,
) -> OcrResponse:
    """Read a document page by page.

    Args:
        path: the file that the request's URL names.
        request: its pages and options are used.
        engine: reads one page at a time.
        on_page: told before each page how many are done and how many there are.

    Raises:
        DocumentError: the file cannot be read, or has none of the pages.
    """
    options = LocalOptions.of(request.options)
    began = time.monotonic()
    pages = []
    with open_document(path, dpi=options.dpi) as document:
        numbers = page_numbers(request.pages, document.page_count)
        if not numbers:
            raise DocumentError(
                "no_such_page",
                f"expected pages {request.pages or 'at all'}, found {document.page_count} in {path}",
            )
        for done, number in enumerate(numbers):
            on_page(done, len(numbers))
            reading = engine.read(document.page(number), min_score=options.min_score)
            blocks = layout.arrange(reading.pieces)
            pages.append(
                OcrPage(
                    number=number,
                    markdown=layout.to_markdown(blocks),
                    text=layout.to_text(blocks),
                    width=reading.size[0],
                    height=reading.size[1],
                    turned=reading.turned,
                    confidence=None if reading.confidence is None else round(reading.confidence, 4),
                )
            )
        count = document.page_count
    return OcrResponse(
        markdown="\n\n".join(page.markdown for page in pages if page.markdown),
        text="\n".join(page.text for page in pages if page.text),
        pages=tuple(pages),
        usage={"page": len(pages)},
        metadata={"model": MODEL, "page_count": count, "seconds": round(time.monotonic() - began, 3)},
    )
