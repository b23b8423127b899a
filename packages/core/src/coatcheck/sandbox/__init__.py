"""Vendors that run on this machine: a small HTTP server, scripts for jobs, and the base of vendor protocols.

Here are the machinery and nothing of any vendor; providers add the protocols of theirs by the hook
``coatcheck_register_sandboxes``, and ``coatcheck sandbox`` serves them all. It is for development and tests.
"""

from coatcheck.sandbox.mount import Mounts, public_url
from coatcheck.sandbox.script import CALLS, Fault, Script, spoil
from coatcheck.sandbox.server import BODY_CAP, HEAD_CAP, Answer, App, FormPart, Request, Server
from coatcheck.sandbox.vendor import Job, VendorSandbox

__all__ = [
    "BODY_CAP",
    "CALLS",
    "HEAD_CAP",
    "Answer",
    "App",
    "Fault",
    "FormPart",
    "Job",
    "Mounts",
    "Request",
    "Script",
    "Server",
    "VendorSandbox",
    "public_url",
    "spoil",
]
