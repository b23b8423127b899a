"""``OcrOptions``: the base of the options of OCR vendors; fields are from ``coatcheck.http.options``."""

from attrs import frozen

from coatcheck.http import VendorOptions


@frozen(kw_only=True, eq=False)
class OcrOptions(VendorOptions):
    """Base of what ``OcrRequest.options`` may hold for one vendor; see ``VendorOptions``."""
