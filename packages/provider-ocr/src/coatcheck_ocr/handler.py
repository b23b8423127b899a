"""``OcrHandler``: what all OCR vendors over HTTP have in common; a vendor adds its paths, words and shapes.

Here are the checks of a request and the way from a finished job to a response; what is not about OCR is in
``coatcheck.http.VendorHandler``. No vendor is known here and nothing does I/O.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import urlsplit

from attrs import field, frozen

from coatcheck.errors import ValidationError
from coatcheck.http import Follow, FromUrl, VendorHandler, VendorJob
from coatcheck.model import QueryResult
from coatcheck.policy import PollPolicy
from coatcheck_ocr.model import OcrRequest
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, Publish, resolve

#: How long a document may take from its URL to us, where it is sent on.
FETCH_TIME = timedelta(seconds=240)

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@frozen(kw_only=True)
class OcrJob(VendorJob):
    """What one reply says about a job, and what the job gives."""

    #: What it gives, once it succeeded.
    output: OcrOutput = field(factory=OcrOutput)

    @property
    def usage(self) -> Mapping[str, int]:
        """What the vendor counts; it comes with the output."""
        return self.output.usage


class OcrHandler(VendorHandler[OcrRequest, OcrJob]):
    """Base of the OCR vendors; a subclass sets the attributes below and defines four methods.

    These are ``submit_call``, ``query_call``, ``read_submitted`` and ``read_job``; see ``VendorHandler``.

    Args:
        base_url: where the vendor is, as for every ``VendorHandler``.
        key: the handler's key, to register a second one for another address.
        account: its default account.
        poll: the pace of its queries.
        earlier_base_urls: addresses that jobs of earlier days may have been submitted to.
        publish: keeps images somewhere and returns their URLs; by default their links stay.
    """

    options_type: ClassVar[type[OcrOptions]] = OcrOptions
    job_type = OcrJob
    #: Whether ``OcrRequest.pages`` can be said to the vendor.
    takes_pages: ClassVar[bool] = False

    def __init__(
        self,
        base_url: str | None = None,
        *,
        key: str | None = None,
        account: str | None = None,
        poll: PollPolicy | None = None,
        earlier_base_urls: Iterable[str] = (),
        publish: Publish | None = None,
    ) -> None:
        super().__init__(base_url, key=key, account=account, poll=poll, earlier_base_urls=earlier_base_urls)
        self.publish = publish

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read.

        Raises:
            ValidationError: the URL, the pages or an option's value is not right, or there is no address.
            UnknownNameError: no option has that name.
        """
        super().validate(params)
        self.check_url(params.url, "url")
        if params.pages is not None and not self.takes_pages:
            raise ValidationError(
                f"{self.key} cannot choose pages; leave pages out, found {params.pages!r}", "pages"
            )

    def page_range(self, request: OcrRequest) -> tuple[int, int] | None:
        """Return the first and the last page, for vendors that read one range; ``None`` for all pages.

        Raises:
            ValidationError: the pages are more than one range.
        """
        if request.pages is None:
            return None
        match = _RANGE.fullmatch(request.pages)
        if match is None:
            raise ValidationError(
                f'{self.key} reads one range: pages must be like "2-5", found {request.pages!r}', "pages"
            )
        return int(match[1]), int(match[2] or match[1])

    def finish(self, job: OcrJob, *, at_once: bool = False) -> QueryResult | Follow:
        """Return the response of a job that succeeded; the downloads that it takes follow.

        Images are published by a query, never by a submit.
        """
        publish = None if at_once else self.publish
        return resolve(job.output, lambda response: self.succeeded(job, response), publish)


def suffixed_name(request: OcrRequest) -> str:
    """Return the document's name with a suffix, which tells servers its kind, where it or its URL has one."""
    name = request.name
    return name if PurePosixPath(name).suffix else name + PurePosixPath(urlsplit(request.url).path).suffix


def document_part(request: OcrRequest, filename: str, **more: Any) -> FromUrl:
    """Return the document as a part of a body, for vendors that look at its name and not at its type.

    Args:
        request: whose document.
        filename: the name that the vendor sees.
        more: as in ``FromUrl``.
    """
    return FromUrl(
        request.url, filename=filename, content_type="application/octet-stream", timeout=FETCH_TIME, **more
    )
