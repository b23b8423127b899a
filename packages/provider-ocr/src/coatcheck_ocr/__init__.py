"""OCR handlers for coatcheck: one request type, one response type, whoever reads the document."""

from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResource, OcrResponse

__all__ = ["OcrPage", "OcrRequest", "OcrResource", "OcrResponse"]
