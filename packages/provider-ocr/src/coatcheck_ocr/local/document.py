"""Opens a document file and gives out its pages as images, one at a time.

PNG, JPEG, TIFF (with several frames) and PDF are told apart by their first bytes, never by their name.
Nothing here recognises text.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from PIL.Image import Image

#: Longer sides are scaled down to this many pixels: small print stays readable, a job takes a gigabyte.
MAX_SIDE = 2000
#: How finely PDF pages are drawn, in dots per inch.
DPI = 170


class DocumentError(Exception):
    """The document cannot be read; ``code`` says why in one word."""

    def __init__(self, code: str, message: str) -> None:
        """Keep both."""
        super().__init__(message)
        self.code = code


@frozen
class Document:
    """An open document."""

    page_count: int
    #: Draws the page with this number, counted from 1.
    page: "Callable[[int], Image]"


@contextlib.contextmanager
def open_document(path: Path, *, dpi: int = DPI) -> Iterator[Document]:
    """Open a PNG, JPEG, TIFF or PDF file.

    Args:
        path: a regular file.
        dpi: how finely PDF pages are drawn.

    Raises:
        DocumentError: ``not_readable``, ``unsupported_document``, ``broken_document``, ``document_locked`` or
            ``document_too_large``.
    """
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise DocumentError("not_readable", f"cannot read {path}: {error.strerror}") from error
    if b"%PDF-" in head:
        with _open_pdf(path, dpi) as document:
            yield document
    elif head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*")):
        with _open_image(path) as document:
            yield document
    else:
        raise DocumentError(
            "unsupported_document", f"expected a PNG, JPEG, TIFF or PDF file, found something else in {path}"
        )


@contextlib.contextmanager
def _open_pdf(path: Path, dpi: int) -> Iterator[Document]:
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise DocumentError("document_locked", f"{path} asks for a password; remove it first") from error
        raise DocumentError("broken_document", f"{path} cannot be opened as PDF: {error}") from error

    def draw(number: int) -> "Image":
        try:
            page = pdf[number - 1]
            try:
                width, height = page.get_size()
                scale = min(dpi / 72, MAX_SIDE / max(width, height, 1))
                bitmap = page.render(scale=scale)
                try:
                    # A copy: the bitmap's own memory is given back.
                    image: Image = bitmap.to_pil().convert("RGB")
                    return image
                finally:
                    bitmap.close()
            finally:
                page.close()
        except pypdfium2.PdfiumError as error:
            raise DocumentError(
                "broken_document", f"page {number} of {path} cannot be drawn: {error}"
            ) from error

    try:
        yield Document(len(pdf), draw)
    finally:
        pdf.close()


@contextlib.contextmanager
def _open_image(path: Path) -> Iterator[Document]:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(path)
    except Image.DecompressionBombError as error:
        raise DocumentError("document_too_large", f"{path} has too many pixels: {error}") from error
    except (UnidentifiedImageError, OSError) as error:
        raise DocumentError("broken_document", f"{path} cannot be opened as an image: {error}") from error

    def draw(number: int) -> "Image.Image":
        try:
            image.seek(number - 1)
            page = ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, SyntaxError) as error:  # Pillow reports broken PNG chunks as SyntaxError
            raise DocumentError(
                "broken_document", f"page {number} of {path} cannot be read: {error}"
            ) from error
        if max(page.size) > MAX_SIDE:
            ratio = MAX_SIDE / max(page.size)
            page = page.resize(
                (math.ceil(page.width * ratio), math.ceil(page.height * ratio)), Image.Resampling.LANCZOS
            )
        return page

    with image:
        yield Document(getattr(image, "n_frames", 1), draw)
