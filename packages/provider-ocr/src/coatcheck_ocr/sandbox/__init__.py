"""The protocols of the OCR vendors as local servers, one module each, from the same facts as the handlers.

Nothing here is used by a handler. ``documents`` has what all protocols give as results.
"""
