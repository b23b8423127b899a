"""``ocr:docling``: a Docling server of one's own, ``docling-serve``.

What is known comes from the source of docling-serve 1.38.2 (SDK) and from a server that was run and called
(RUN). ``(?)`` marks what is not sure:

- Submit: POST ``/v1/convert/file/async`` multipart, the options as flat fields, lists as repeated ones; or
    POST ``/v1/convert/source/async`` with ``sources`` (at most 3, else 422), ``options`` and ``target``
    (SDK). How an option that is an object stands in a form (?).
- Two or more sources give an archive without those that failed (RUN); we send one, and name the target.
- The server fetches no URL of a loopback or private host, and none that leads to a zip (RUN).
- Query: GET ``/v1/status/poll/{id}``; ``wait`` is ignored by the engine that is the default (RUN). Then GET
    ``/v1/result/{id}``: JSON or an archive; JSON of kind ``TaskFailureResult`` with some engines (SDK).
- A task with ``success`` may hold a document with ``failure`` (RUN). The result of a failed task is 404, and
    the reason is in the status only (RUN).
- The result is kept for 300 s after it was fetched first, then the task is 404, too (RUN).
- Key in ``X-Api-Key`` where the server was given one; ``X-Tenant-Id``: the tasks of another tenant are 404.
- Busy: 503 with ``Retry-After`` (SDK). Errors ``{"detail": …}``. No cancel, no usage.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from attrs import frozen

from coatcheck.accounts import key_of
from coatcheck.errors import JobNotFoundError, VendorError
from coatcheck.http import Call, Follow, Part, Reply, path
from coatcheck.http.form import form_parts
from coatcheck.http.options import choice, number, switch, text, words
from coatcheck.http.read import id_of, members, shortened, text_of, within
from coatcheck.http.vendor import FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import Account, QueryContext, QueryParams, QueryResult, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob, document_part, suffixed_name
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import DOWNLOAD_CAP, OcrOutput, open_archive

_ZIP = b"PK"
#: How many errors of a document are kept with its result.
_ERRORS_KEPT = 20


@frozen(kw_only=True, eq=False)
class DoclingOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:docling``."""

    #: Whether the server fetches the URL, instead of being sent the document; it must reach it, and refuses
    #: hosts that are not public.
    server_fetches: bool | None = switch()
    #: How the result comes: with "zip", referenced pictures are there as files.
    target: str | None = choice("inbody", "zip")
    #: What is made of the document (the server's default: "md").
    to_formats: tuple[str, ...] | None = words("md", "text")
    #: Whether text in pictures is read (the server's default: yes), and whether all pages are read as such.
    do_ocr: bool | None = switch()
    force_ocr: bool | None = switch()
    ocr_engine: str | None = text(100)
    #: Languages to expect, in the engine's codes.
    ocr_lang: tuple[str, ...] | None = words()
    pdf_backend: str | None = text(100)
    table_mode: str | None = text(100)
    do_table_structure: bool | None = switch()
    #: What stands for a picture in the text (the server's default: a placeholder).
    image_export_mode: str | None = choice("placeholder", "embedded", "referenced")
    include_images: bool | None = switch()
    images_scale: float | None = number(0.1, 100)
    #: How long the conversion may take, in seconds.
    document_timeout: float | None = number(1, 604_800)
    #: Whether the first error ends the conversion (the server's default: no).
    abort_on_error: bool | None = switch()
    #: Whose tasks these are, at a server with tenants.
    tenant: str | None = text(200)


class DoclingHandler(OcrHandler):
    """Reads documents with a Docling server; takes URLs, and sends on what it fetches there."""

    key = "ocr:docling"
    account = "docling"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("DOCLING_SERVE_API_KEY",)}
    options_type = DoclingOptions
    takes_pages = True
    #: Errors are followed by a query within 66 s: a result that was fetched in part is kept for 300 s.
    poll = PollPolicy.exponential(timedelta(seconds=2))
    #: Room for the fetch and the upload.
    call_limit = timedelta(seconds=600)
    result_life = timedelta(seconds=300)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "pending": SUBMITTED,
        "started": RUNNING,
        "success": SUCCEEDED,
        "partial_success": SUCCEEDED,
        "failure": FAILED,
        "skipped": FAILED,
    }

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the server could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        self.page_range(params)

    def sign(self, call: Call, account: Account) -> Call:
        """Add the key, unless nothing at all is configured for the account: servers need none."""
        key = key_of(account)
        return call if key is None else call.with_headers(X_Api_Key=key)

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        pages = self.page_range(params)
        said = self.fields(
            params, pipeline=self.model(params), page_range=None if pages is None else list(pages)
        )
        target = said.pop("target", "inbody")
        headers = _tenant(said.pop("tenant", None))
        if said.pop("server_fetches", False):
            body = {
                "sources": [{"kind": "http", "url": params.url}],
                "options": said,
                "target": {"kind": target},
            }
            return Call("POST", "/v1/convert/source/async", headers=headers, json=body)
        parts: dict[str, Any] = {name: form_parts(value) for name, value in said.items()}
        parts["target_type"] = Part(content=target)
        parts["files"] = document_part(params, suffixed_name(params))
        return Call(
            "POST",
            "/v1/convert/file/async",
            headers=headers,
            multipart=parts,
            timeout=timedelta(seconds=300),
        )

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit; a task that is done already is fetched by the first query."""
        body = members(reply)
        job_id = id_of(body, "task_id")
        if job_id is None:
            # An error with 2xx, or nothing: no id, so the outcome is unknown.
            return OcrJob(status=SUBMITTED)
        job = self._job(body)
        tenant = text_of(self.options(request), "tenant")
        return OcrJob(
            status=RUNNING if job.status is SUCCEEDED else job.status,
            id=job_id,
            word=job.word,
            code=job.code,
            message=job.message,
            retryable=job.retryable,
            params={} if tenant is None else {"tenant": tenant},
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call(
            "GET",
            path("v1", "status", "poll", params.external_task_id),
            headers=_tenant(params.get("tenant")),
        )

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query; the result is fetched in the same step."""
        job = self._job(members(reply))
        if job.status is not SUCCEEDED:
            return job
        call = Call(
            "GET",
            path("v1", "result", params.external_task_id),
            headers=_tenant(params.get("tenant")),
            accept=(404,),
            spool=True,
            body_cap=DOWNLOAD_CAP,
            timeout=timedelta(seconds=240),
        )
        return Follow(call, lambda result: self._read_result(job, result))

    def _job(self, body: Mapping[str, Any]) -> OcrJob:
        word = body.get("task_status")
        status = self.status_of(word)
        return _failed(body, str(word)) if status is FAILED else OcrJob(status=status, word=str(word))

    def _read_result(self, job: OcrJob, reply: Reply) -> QueryResult | Follow:
        if reply.status == 404:
            raise JobNotFoundError(
                f"{self.key}: the job is done, but its result is not there: it was fetched more than "
                "5 minutes ago, or the server began anew",
                code="result_gone",
            )
        file = reply.as_file()
        begins_with = file.read(len(_ZIP))
        file.seek(0)
        if begins_with == _ZIP:
            return open_archive(file, OcrOutput(), lambda found: self._from_archive(job, found), self.publish)
        body = members(Reply(reply.status, file.read(), reply.headers))
        if body.get("kind") == "TaskFailureResult":
            return self.answer(_failed(body, job.word))
        document, word = body.get("document"), body.get("status")
        if not isinstance(document, Mapping):
            raise VendorError(
                f"{self.key}: expected a document in the result, found {sorted(body)}; it is asked for again",
                code="unreadable_result",
            )
        errors = _errors(body)
        if word is not None and self.states.get(str(word).lower()) is FAILED:
            return self.answer(
                OcrJob(
                    status=FAILED,
                    word=str(word),
                    code=text_of(within(errors, 0), "category") or "failed",
                    message=shortened("; ".join(text_of(one, "error_message") or "" for one in errors)),
                )
            )
        output = OcrOutput(
            markdown=_content(document, "md_content"),
            text=_content(document, "text_content"),
            metadata={
                "document_status": text_of(body, "status"),
                "processing_time": within(body, "processing_time"),
                "errors": errors or None,
            },
        )
        return self.answer(OcrJob(status=SUCCEEDED, word=job.word, output=output))

    def _from_archive(self, job: OcrJob, response: OcrResponse) -> QueryResult:
        if "archive_entries" in response.metadata:
            # Documents that failed are left out of it, and nothing else says so.
            return QueryResult.failed(
                "no_result",
                f"the server calls the task {job.word}, and no text is in its archive: the document could "
                "not be read",
                provider_status=job.word,
            )
        return self.succeeded(job, response)


def _failed(body: Mapping[str, Any], word: str | None) -> OcrJob:
    failure = body.get("failure")
    return OcrJob(
        status=FAILED,
        word=word,
        code=text_of(failure, "category") or "failed",
        message=shortened(text_of(failure, "message") or text_of(body, "error_message")),
        retryable=within(failure, "retryable") is True,
    )


def _tenant(name: object) -> dict[str, str]:
    return {} if name is None else {"X-Tenant-Id": str(name)}


def _content(document: Mapping[str, Any], name: str) -> str | None:
    found = document.get(name)
    return found if isinstance(found, str) else None


def _errors(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = body.get("errors")
    kept = ("component_type", "module_name", "category", "error_message", "page_no")
    return [
        {
            name: shortened(value) if isinstance(value, str) else value
            for name in kept
            if isinstance(value := within(one, name), str | int)
        }
        for one in (found if isinstance(found, list) else ())[:_ERRORS_KEPT]
    ]
