"""``ocr:gitee``: Gitee AI, also called MoArk, at ai.gitee.com.

The vendor's own API page could not be read; what is known comes from the agents-flex adapter and its tests
(AF) and from several clients of third parties (3P). ``(1)`` marks what one weaker source says, ``(?)`` what
is not sure:

- Submit: POST ``/async/documents/parse``, multipart, file only (AF): the document is fetched and sent on.
    Options but ``model`` (AF): 3P (1). Header ``X-Failover-Enabled`` (1).
- Reply ``task_id`` or ``id``, ``status``; a reply that has succeeded already is possible (AF).
- A submit may answer 200 with ``status: failure`` because too many tasks run, the reason in ``output.error``
    (3P).
- Query: GET ``/task/{id}`` (AF). Words: AF and 3P. No progress.
- Result below ``output``, inline or as links that live for an unpublished, short time (AF); ``text_result``,
    ``pages``, ``file_url`` (1).
- Cancel: POST ``/task/{id}/cancel`` (?). No idempotency key, no usage field.
- Errors ``{"error": {"code", "type", "message"}}``, ``{"error": "text", "message"}``; code 18 of an old
    gateway is a rate limit (1).
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from attrs import frozen

from coatcheck.errors import ThrottledError, ValidationError
from coatcheck.http import Call, Follow, FromUrl, Part, Reply, path
from coatcheck.http.form import form_text
from coatcheck.http.options import choice, switch, text, whole
from coatcheck.http.read import error_of, id_of, members, shortened, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, RUNNING, SUBMITTED, SUCCEEDED, Trouble
from coatcheck.model import CancelResult, QueryContext, QueryParams, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob, document_part
from coatcheck_ocr.model import OcrPage, OcrRequest
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, links

#: Models of the asynchronous endpoint (AF); others may exist and are passed on.
MODELS = (
    "Unlimited-OCR",
    "PDF-Extract-Kit-1.0",
    "MinerU2.5",
    "MinerU2.5-Pro",
    "DeepSeek-OCR",
    "PaddleOCR-VL",
    "PaddleOCR-VL-1.5",
)

_FIRST_PAGES = re.compile(r"1(?:-(\d+))?")
#: What a submit that failed at once says when the account has too many tasks.
_CAPACITY = re.compile(
    r"too many|limit|busy|concurren|queue|capacity|overload|later|过多|上限|限制|繁忙|排队|并发|稍后",
    re.IGNORECASE,
)
_TYPES = {"md": "markdown", "zip": "archive"}


@frozen(kw_only=True, eq=False)
class GiteeOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:gitee``; which of them count depends on the model."""

    #: An instruction for models that read pictures.
    prompt: str | None = text()
    #: Whether pictures are returned, and whether inside the text.
    include_image: bool | None = switch()
    include_image_base64: bool | None = switch()
    output_format: str | None = choice("md", "markdown", "text")
    #: The last page; ``OcrRequest.pages`` like "1-5" says the same.
    end_pages: int | None = whole(1, 100_000)
    #: For the MinerU and PDF-Extract-Kit family.
    is_ocr: bool | None = switch()
    formula_enable: bool | None = switch()
    table_enable: bool | None = switch()
    layout_model: str | None = text(200)
    #: Whether the platform may use a substitute for a model that is down.
    failover: bool | None = switch()


class GiteeHandler(OcrHandler):
    """Reads documents at Gitee AI; takes http and https URLs, whose content it fetches and sends on."""

    key = "ocr:gitee"
    account = "gitee"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("GITEE_API_KEY", "GITEE_OCR_API_KEY")}
    base_url = "https://ai.gitee.com/v1"
    options_type = GiteeOptions
    default_model = "Unlimited-OCR"
    takes_pages = True
    poll = PollPolicy.exponential(timedelta(seconds=3))
    #: Room for the fetch and the upload.
    call_limit = timedelta(seconds=600)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "waiting": SUBMITTED,
        "pending": SUBMITTED,
        "queued": SUBMITTED,
        "in_progress": RUNNING,
        "running": RUNNING,
        "processing": RUNNING,
        "success": SUCCEEDED,
        "succeeded": SUCCEEDED,
        "done": SUCCEEDED,
        "failure": FAILED,
        "failed": FAILED,
        "cancelled": CANCELED,
        "canceled": CANCELED,
    }
    troubles: ClassVar[Mapping[str, Trouble]] = {"18": Trouble.BUSY}

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        if params.pages is not None and not _FIRST_PAGES.fullmatch(params.pages):
            raise ValidationError(
                f'{self.key} reads from the first page on: pages must be like "1-5", found {params.pages!r}',
                "pages",
            )

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the upload."""
        said = self.fields(params, model=self.model(params), end_pages=_last_page(params.pages))
        failover = said.pop("failover", None)
        headers = {} if failover is None else {"X-Failover-Enabled": form_text(failover)}
        parts: dict[str, Part | FromUrl] = {
            name: Part(content=form_text(value)) for name, value in said.items() if name != "file"
        }
        parts["file"] = document_part(params, _file_name(params))
        return Call(
            "POST", "/async/documents/parse", headers=headers, multipart=parts, timeout=timedelta(seconds=300)
        )

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the upload."""
        body = members(reply)
        job_id, word = id_of(body, "task_id", "id"), body.get("status")
        if word is None:
            if job_id is None and ("error" in body or "error_code" in body):
                return self.judge(*error_of(body), creating=True)
            return OcrJob(status=SUBMITTED, id=job_id)
        job = self._job(body, word)
        if job.status is FAILED and _CAPACITY.search(job.message):
            raise ThrottledError(f"{self.key}: the vendor has no room for another task: {job.message}")
        return job

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("task", params.external_task_id), body_cap=32 * 1024 * 1024)

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query."""
        body = members(reply)
        if body.get("status") is None and ("error" in body or "error_code" in body):
            return self.judge(*error_of(body), creating=False)
        return self._job(body, body.get("status"))

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel (?)."""
        return Call("POST", path("task", params.external_task_id, "cancel"))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel."""
        return self.read_stopped(members(reply).get("status"))

    def _job(self, body: dict[str, Any], word: object) -> OcrJob:
        status = self.status_of(word)
        code, message = error_of(body)
        if not message:
            inner = within(body, "output", "error")
            message = shortened(inner if isinstance(inner, str) else error_of(within(body, "output"))[1])
        return OcrJob(
            status=status,
            id=id_of(body, "task_id", "id"),
            word=str(word),
            code=code or "failed",
            message=message,
            output=_output(body) if status is SUCCEEDED else OcrOutput(),
        )


def _last_page(pages: str | None) -> int | None:
    match = _FIRST_PAGES.fullmatch(pages or "")
    return int(match[1] or 1) if match else None


def _file_name(request: OcrRequest) -> str:
    """Return a name with a suffix, by which the vendor tells the kind of the document."""
    name = request.name
    if "." in name.strip("."):
        return name
    suffix = request.url.partition("?")[0].rpartition("/")[2].rpartition(".")[2]
    is_suffix = suffix.isalnum() and len(suffix) < 12 and suffix != name
    return f"{name}.{suffix if is_suffix else 'tmp'}"


def _output(body: dict[str, Any]) -> OcrOutput:
    output = body.get("output")
    if isinstance(output, str):
        output = {"markdown": output}
    markdown = text_of(output, "markdown", "md")
    segments = within(output, "segments")
    if markdown is None and isinstance(segments, list):
        # In array order: the index in a segment can begin again.
        markdown = "\n".join(str(within(segment, "content") or "") for segment in segments)
    pages = _pages(within(output, "pages"))
    plain = text_of(output, "text", "content", "text_result")
    if markdown is None and plain is None and pages:
        markdown = "\n\n".join(page.markdown for page in pages)
    facts = {name: body.get(name) for name in ("created_at", "started_at", "completed_at")}
    return OcrOutput(
        markdown=markdown,
        text=plain,
        pages=pages,
        resources=links(_offered(output)),
        metadata={name: value for name, value in facts.items() if isinstance(value, str | int | float)},
    )


def _pages(found: object) -> tuple[OcrPage, ...]:
    if not isinstance(found, list):
        return ()
    # Numbered by their order: what page_index counts from is not known.
    return tuple(
        OcrPage(number=number, markdown=text_of(page, "text_result") or "")
        for number, page in enumerate(found, start=1)
    )


def _offered(output: object) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [
        ("markdown", within(output, "markdown_url")),
        ("markdown", within(output, "md_url")),
        ("json", within(output, "json_url")),
        ("json", within(output, "content_list_url")),
        ("archive", within(output, "full_zip_url")),
        ("archive", within(output, "zip_url")),
    ]
    files = within(output, "files")
    for file in files if isinstance(files, list) else ():
        kind = (text_of(file, "type", "format") or "file").lower()
        found.append((_TYPES.get(kind, kind), text_of(file, "url", "file_url")))
    found.append(("file", within(output, "file_url")))
    return found
