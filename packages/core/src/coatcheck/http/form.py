"""Values as form fields and multipart parts carry them, which is not how Python writes them."""

from collections.abc import Mapping
from typing import Any

from coatcheck import codec
from coatcheck.http.call import Part


def form_text(value: Any) -> str:
    """Return a value as form fields and multipart parts carry it: ``true`` and ``false`` for booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def form_parts(value: Any) -> Part | list[Part]:
    """Return a value as multipart bodies carry it: a list as a repeated part, an object as JSON."""
    if isinstance(value, list | tuple):
        return [Part(content=form_text(one)) for one in value]
    return Part(content=codec.dumps(value) if isinstance(value, Mapping) else form_text(value))
