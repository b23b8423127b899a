"""Transports perform calls; only the modules of this package import an HTTP client.

A transport sends each call once: no retries, no redirects, no cookies, no credentials but those that the
call's ``sign`` adds. It says by the class of its error whether the vendor can have seen the call, and knows
nothing of jobs, handlers or the reply table.
"""

from coatcheck.transport.outgoing import encode_body, full_url
from coatcheck.transport.over_requests import RequestsTransport
from coatcheck.transport.over_urllib3 import Urllib3Transport
from coatcheck.transport.protocol import CONNECT_TIMEOUT, FRESH, IDLE, AsyncTransport, Transport

__all__ = [
    "CONNECT_TIMEOUT",
    "FRESH",
    "IDLE",
    "AsyncTransport",
    "RequestsTransport",
    "Transport",
    "Urllib3Transport",
    "encode_body",
    "full_url",
]
