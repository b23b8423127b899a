"""Turns records and values into bytes and back; the only place that knows JSON or a record format.

A typed value (params, result) is one envelope: registered type name, version, data (``value``). A task's
record is one JSON object of the fields that lie beside the store's hot columns (``record``). Types come from
an allow-list (``allowed``), never from an import path in the data, so nothing that is stored can import or
call code. Nothing here logs a value, decides a move of the life cycle or does I/O, except to look whether a
text names a local file.
"""

from coatcheck.codec.allowed import is_persistent, registered_types, type_name, unregister
from coatcheck.codec.record import FORMAT, cut, decode_params, decode_task, encode_record
from coatcheck.codec.shape import RawValue, dumps, loads
from coatcheck.codec.value import (
    CAPS,
    check_plain,
    check_request,
    check_type,
    decode_value,
    encode_value,
    persistent,
    request_digest,
    upcast,
)
from coatcheck.codec.walk import is_readable_file_url

__all__ = [
    "CAPS",
    "FORMAT",
    "RawValue",
    "check_plain",
    "check_request",
    "check_type",
    "cut",
    "decode_params",
    "decode_task",
    "decode_value",
    "dumps",
    "encode_record",
    "encode_value",
    "is_persistent",
    "is_readable_file_url",
    "loads",
    "persistent",
    "registered_types",
    "request_digest",
    "type_name",
    "unregister",
    "upcast",
]
