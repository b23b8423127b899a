"""``HttpHandler`` and the conversation of one step: calls to make, replies to read, and what they mean.

``steps`` is the whole conversation of one step as a generator: it yields calls, takes replies, applies the
reply table and returns the result. Nothing here does I/O, sleeps or retries; a transport performs the calls.
"""

from coatcheck.http.address import check_public
from coatcheck.http.call import BODY_CAP, DOWNLOAD_CAP, Call, Follow, FromUrl, Part, Reply, path
from coatcheck.http.callback import TASK_ID, Callback, CallbackNote, callback_url, check_callback_url
from coatcheck.http.handler import HttpHandler
from coatcheck.http.options import VendorOptions
from coatcheck.http.run import run, run_async
from coatcheck.http.table import ACCOUNT_REFUSED
from coatcheck.http.talk import FOLLOWS, REDIRECTS, callback_steps, steps
from coatcheck.http.tokens import Token
from coatcheck.http.vendor import Trouble, VendorHandler, VendorJob, VendorRequest

__all__ = [
    "ACCOUNT_REFUSED",
    "BODY_CAP",
    "DOWNLOAD_CAP",
    "FOLLOWS",
    "REDIRECTS",
    "TASK_ID",
    "Call",
    "Callback",
    "CallbackNote",
    "Follow",
    "FromUrl",
    "HttpHandler",
    "Part",
    "Reply",
    "Token",
    "Trouble",
    "VendorHandler",
    "VendorJob",
    "VendorOptions",
    "VendorRequest",
    "callback_steps",
    "callback_url",
    "check_callback_url",
    "check_public",
    "path",
    "run",
    "run_async",
    "steps",
]
