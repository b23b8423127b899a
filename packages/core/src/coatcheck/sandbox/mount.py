"""Several protocols on one server, each below the name of its handler, and documents to submit."""

from collections.abc import Mapping
from urllib.parse import quote

import attrs

from coatcheck.sandbox.server import Answer, App, Request

_PREFIX = "x-forwarded-prefix"
_DOCUMENT = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 72 72]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)


class Mounts:
    """An ``App`` that leads each request to the protocol that the first segment of its path names.

    ``/documents/NAME`` gives a small PDF for any name, so that there is something to submit; ``/`` lists what
    there is.

    Args:
        apps: protocols by the name of their handler; ``:`` becomes ``-`` in the path.
    """

    def __init__(self, apps: Mapping[str, App]) -> None:
        self._apps = {_segment(name): app for name, app in apps.items()}

    @staticmethod
    def url(base: str, name: str) -> str:
        """Return where the protocol of a handler is, on the server at ``base``."""
        return f"{base}/{_segment(name)}"

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        first, _, rest = request.path.lstrip("/").partition("/")
        app = self._apps.get(first)
        if app is not None:
            headers = {**request.headers, _PREFIX: f"/{first}"}
            return app(attrs.evolve(request, path=f"/{rest}", headers=headers))
        if first == "documents" and rest and request.method in ("GET", "HEAD"):
            return Answer(200, _DOCUMENT, headers={"Content-Type": "application/pdf"})
        paths = [f"/{name}" for name in sorted(self._apps)] + ["/documents/NAME"]
        return Answer.json({"paths": paths}, 200 if request.path == "/" else 404)


def _segment(name: str) -> str:
    return quote(name.replace(":", "-"), safe="")


def public_url(request: Request) -> str:
    """Return where the client reached the protocol that got this request, without a trailing slash."""
    return f"http://{request.header('host') or 'localhost'}{request.header(_PREFIX) or ''}"
