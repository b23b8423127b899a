"""Keeps out of the logs what urllib3 says about our calls: whole addresses, which may hold a token (G8)."""

import logging
import threading

_LOGGERS = ("urllib3.connection", "urllib3.connectionpool")


class _Quiet(threading.local):
    #: Whether this thread performs a call of ours; others that use urllib3 keep their logs.
    on = False


quiet = _Quiet()


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not quiet.on


for name in _LOGGERS:
    logging.getLogger(name).addFilter(_is_not_ours)
