"""Handlers declared as data: a vendor with one JSON call to submit and one to query, described in settings.

A ``Descriptor`` holds the description (``tables``). Its texts are templates (``template``) in calls
(``plan``), and places in replies (``finder``, ``reading``). The handler that does what it says (``handler``)
is made at start, when all of it is checked. Nothing here does I/O or knows a vendor.
"""

from coatcheck.descriptor.handler import DescribedHandler, add_declared
from coatcheck.descriptor.tables import Descriptor
from coatcheck.descriptor.value import JsonRequest, JsonResult

__all__ = ["DescribedHandler", "Descriptor", "JsonRequest", "JsonResult", "add_declared"]
