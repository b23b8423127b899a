"""The protocols of the video vendors as local servers, one module each, from the same facts as the handlers.

Nothing here is used by a handler. ``media`` has the files that all protocols give as results.
"""
