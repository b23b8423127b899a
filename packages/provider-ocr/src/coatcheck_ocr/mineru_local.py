"""``ocr:mineru-local`` and ``ocr:mineru-local-v3``: a MinerU server of one's own, ``mineru-api``.

What is known comes from the server of the package mineru 4.0.12, which was run and called (RUN), and from the
source of 3.1.0 (SDK). ``(?)`` marks what is not sure:

- Version 4: POST ``/v1/tasks`` → 202 ``task_id``, ``status`` and relative links, which are not needed. Of a
    multipart body the options stand in the query. Bearer key where the server was given one.
- Query GET ``/v1/tasks/{id}``; then GET ``/v1/tasks/{id}/result?response_format=zip``: 202 while it runs, 409
    after a failure. Inline markdown carries its images as data URIs; the archive has them as files.
- ``partial`` is a success of some files; we send one, whose own ``status`` counts.
- Cancel DELETE ``/v1/tasks/{id}``; 409 ``job_already_terminal``. Tasks are in memory, results live 24 h.
- Errors ``{"error": {"type", "code", "message", "param"}}``. 503 ``quality_tier_unavailable`` is a server
    without the tier that was (or was not) named: no waiting helps.
- Servers of 4.2 may answer in another shape (?).
- Version 3: POST ``/tasks`` multipart → 202; the same course below ``/tasks``; no key, no cancel; pages are
    counted from 0. 404 ``{"detail": "Task not found"}``.
"""

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import attrs
from attrs import frozen

from coatcheck.accounts import key_of
from coatcheck.errors import (
    NotReadyError,
    RejectedError,
    ThrottledError,
    VendorError,
)
from coatcheck.http import Call, Follow, FromUrl, Reply, path
from coatcheck.http.form import form_parts, form_text
from coatcheck.http.options import choice, switch, text, words
from coatcheck.http.read import error_of, id_of, members, members_if_any, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import (
    Account,
    CancelResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob, document_part, suffixed_name
from coatcheck_ocr.model import OcrRequest, OcrResource
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import DOWNLOAD_CAP, OcrOutput, open_archive

#: The largest file that a server takes, in bytes.
_FILE_CAP = 200 * 1024 * 1024


@frozen(kw_only=True, eq=False)
class MinerULocalOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:mineru-local``."""

    #: Whether pages are read as pictures: never, always, or where they have no text (the server's default).
    #: A server without models reads PDF with "txt" only.
    ocr_mode: str | None = choice("auto", "txt", "ocr")
    #: Further files to keep at the server; the response has their links.
    output_formats: tuple[str, ...] | None = words("markdown", "middle_json", "structured_content")
    #: Whether the server fetches the URL, instead of being sent the document; it must reach it,
    #: and plain http must be allowed there (``--allow-http-source``).
    server_fetches: bool | None = switch()


@frozen(kw_only=True, eq=False)
class MinerUV3Options(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:mineru-local-v3``."""

    #: Languages to expect, in the server's codes; its default is "ch".
    lang_list: tuple[str, ...] | None = words()
    #: Whether pages are read as pictures.
    parse_method: str | None = choice("auto", "txt", "ocr")
    #: Whether formulas and tables are recognised (the server's default: yes).
    formula_enable: bool | None = switch()
    table_enable: bool | None = switch()
    #: Where the model is served, for the backends that end in "-http-client".
    server_url: str | None = text(2000)


class _Server(OcrHandler):
    """What both generations of the server have in common: words, and the archive as a second step."""

    base_url_env = ("MINERU_API_URL",)
    takes_pages = True
    poll = PollPolicy.exponential(timedelta(seconds=2))
    #: Room for the fetch and the upload.
    call_limit = timedelta(seconds=600)
    result_life = timedelta(hours=24)
    #: Where tasks are, below the base URL.
    tasks: ClassVar[tuple[str, ...]]
    #: The query of the call for the result.
    result_query: ClassVar[Mapping[str, str]] = {}

    def document(self, request: OcrRequest) -> FromUrl:
        """Return the document as a part of a body."""
        return document_part(request, suffixed_name(request), cap=_FILE_CAP)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path(*self.tasks, params.external_task_id))

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        body = members(reply)
        job_id, word = id_of(body, "task_id"), body.get("status")
        if job_id is None:
            # An error with 2xx, or nothing: no id, so the outcome is unknown.
            return OcrJob(status=SUBMITTED)
        return attrs.evolve(self.job(body), id=job_id) if word else OcrJob(status=SUBMITTED, id=job_id)

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query; the result is fetched in the same step."""
        job = self.job(members(reply))
        if job.status is not SUCCEEDED:
            return job
        call = Call(
            "GET",
            path(*self.tasks, params.external_task_id, "result"),
            query=self.result_query,
            accept=(409,),
            spool=True,
            body_cap=DOWNLOAD_CAP,
            timeout=timedelta(seconds=240),
        )
        return Follow(call, lambda result: self._read_result(job, result))

    def _read_result(self, job: OcrJob, reply: Reply) -> QueryResult | Follow:
        if reply.status == 202:
            raise NotReadyError(f"{self.key}: the job is {job.word}, and its result is not ready yet")
        if reply.status == 409:
            raise VendorError(
                f"{self.key}: the job is {job.word}, and there is no result of it; it is asked again",
                code="result_refused",
                http_status=409,
            )
        return open_archive(
            reply.as_file(), job.output, lambda response: self.succeeded(job, response), self.publish
        )

    @abstractmethod
    def job(self, body: Mapping[str, Any]) -> OcrJob:
        """Return what the server says about a job."""


class MinerULocalHandler(_Server):
    """Reads documents with a MinerU server of version 4; takes URLs, and sends on what it fetches there."""

    key = "ocr:mineru-local"
    account = "mineru-local"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("MINERU_API_KEY",)}
    options_type = MinerULocalOptions
    tasks = ("v1", "tasks")
    result_query: ClassVar[Mapping[str, str]] = {"response_format": "zip"}
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "queued": SUBMITTED,
        "running": RUNNING,
        "completed": SUCCEEDED,
        "partial": SUCCEEDED,
        "failed": FAILED,
        "canceled": CANCELED,
    }

    def sign(self, call: Call, account: Account) -> Call:
        """Add the key, unless nothing at all is configured for the account: servers need none."""
        return call if key_of(account) is None else super().sign(call, account)

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        said = self.fields(params, tier=self.model(params))
        formats = [*said.pop("output_formats", ()), "zip"]
        is_fetched_there = said.pop("server_fetches", False)
        if is_fetched_there:
            file: dict[str, Any] = {"source": {"type": "url", "url": params.url}}
            if params.pages is not None:
                file["page_range"] = params.pages
            body = {**said, "files": [file], "output_formats": formats}
            return Call("POST", path(*self.tasks), json=body, accept=(503,))
        query: dict[str, Any] = {name: form_text(value) for name, value in said.items()}
        query |= {"page_range": params.pages, "output_formats": formats}
        return Call(
            "POST",
            path(*self.tasks),
            query=query,
            multipart={"files": self.document(params)},
            accept=(503,),
            timeout=timedelta(seconds=300),
        )

    def read_submit(self, reply: Reply, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit; a tier that the server has not is refused for good."""
        if reply.status == 503:
            code, message = error_of(members_if_any(reply))
            text = f"{self.key}: the server answered 503 {code or ''}: {message}"
            if code == "quality_tier_unavailable":
                raise RejectedError(f"{text} Name a tier that it has as model.", code=code)
            delay = reply.retry_after(context.now)
            if delay is not None:
                raise ThrottledError(text, delay=delay)
            raise VendorError(text, code="http_503", http_status=503)
        return super().read_submit(reply, params, context)

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel."""
        return Call("DELETE", path(*self.tasks, params.external_task_id), accept=(409,))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel."""
        if reply.status == 409:
            return CancelResult.refused(error_of(members_if_any(reply))[1] or "the job has ended already")
        return self.read_stopped(members(reply).get("status"))

    def job(self, body: Mapping[str, Any]) -> OcrJob:
        """Return what the server says about a job; with one document, that one's status counts."""
        word = body.get("status")
        status = self.status_of(word)
        file = within(body, "files", 0)
        if status is SUCCEEDED and str(within(file, "status")).lower() in ("failed", "canceled"):
            status = FAILED
        code, message = error_of(file) if within(file, "error") else error_of(body)
        return OcrJob(
            status=status,
            word=str(word),
            code=code or "failed",
            message=message,
            output=self._output(file) if status is SUCCEEDED else OcrOutput(),
        )

    def _output(self, file: Any) -> OcrOutput:
        found = within(file, "output_files")
        files = found.items() if isinstance(found, Mapping) else ()
        parse = within(file, "parse")
        return OcrOutput(
            resources=tuple(
                OcrResource(
                    type="archive" if kind == "zip" else kind,
                    url=f"{self.base_url}{path('v1', 'files', file_id, 'content')}",
                )
                for kind, one in files
                if (file_id := text_of(one, "file_id")) is not None
            ),
            metadata={
                "parser_version": text_of(parse, "parser_version"),
                "duration_ms": within(parse, "duration_ms"),
            },
        )


class MinerUV3Handler(_Server):
    """Reads documents with a MinerU server of version 3; takes URLs, and sends on what it fetches there."""

    key = "ocr:mineru-local-v3"
    account = "mineru-local-v3"
    options_type = MinerUV3Options
    tasks = ("tasks",)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "pending": SUBMITTED,
        "processing": RUNNING,
        "completed": SUCCEEDED,
        "failed": FAILED,
    }

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the server could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        self.page_range(params)

    def sign(self, call: Call, account: Account) -> Call:
        """Add nothing: these servers know no keys."""
        return call

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        pages = self.page_range(params)
        said = self.fields(
            params,
            backend=self.model(params),
            start_page_id=None if pages is None else pages[0] - 1,
            end_page_id=None if pages is None else pages[1] - 1,
            return_md=True,
            return_images=True,
            response_format_zip=True,
        )
        parts: dict[str, Any] = {name: form_parts(value) for name, value in said.items()}
        parts["files"] = self.document(params)
        return Call("POST", path(*self.tasks), multipart=parts, timeout=timedelta(seconds=300))

    def job(self, body: Mapping[str, Any]) -> OcrJob:
        """Return what the server says about a job."""
        word = body.get("status")
        code, message = error_of(body)
        return OcrJob(status=self.status_of(word), word=str(word), code=code or "failed", message=message)
