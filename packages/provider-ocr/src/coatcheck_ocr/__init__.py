"""OCR handlers for coatcheck."""
