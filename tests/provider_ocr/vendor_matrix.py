"""``VendorMatrix`` of the OCR vendors: requests whose document's name says how its job goes."""

import re
from typing import Any, ClassVar

import attrs

from coatcheck.testing import vendor_matrix
from coatcheck_ocr.model import OcrRequest, OcrResponse

#: A suffix begins with a letter: ``0.5`` at the end of a script is none.
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,7}$")


class VendorMatrix(vendor_matrix.VendorMatrix):
    """What every OCR vendor has to get through.

    Attributes:
        request: a request whose ``url`` is replaced; give the model and options that the tests are about.
        document: the URL of the document ``{name}``, on the server at ``{url}``.
    """

    request: ClassVar[OcrRequest] = OcrRequest(url="https://documents.example/a.pdf")
    document: ClassVar[str] = "{url}/documents/{name}"

    def request_for(self, name: str, url: str) -> OcrRequest:
        """Return a request for a document whose name says how its job goes."""
        file = name if _SUFFIX.search(name) else f"{name}.pdf"
        return attrs.evolve(self.request, url=self.document.format(url=url, name=file))

    def check_result(self, result: Any) -> None:
        """Check that there is a text."""
        assert isinstance(result, OcrResponse)
        assert result.markdown.strip()
