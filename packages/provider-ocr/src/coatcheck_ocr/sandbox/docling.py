"""The protocol of a Docling server; see ``coatcheck_ocr.docling`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox
from coatcheck_ocr.sandbox import documents


class DoclingSandbox(VendorSandbox):
    """Answers like a Docling server; one with a key where ``tokens`` are given.

    A document whose name begins with "corrupt" fails within a task that succeeds.
    """

    words: ClassVar[Mapping[str, str]] = {
        "queued": "pending",
        "running": "started",
        "succeeded": "success",
        "failed": "failure",
        "canceled": "skipped",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:docling`` here."""
        return {"COATCHECK_OCR_DOCLING_URL": url, "DOCLING_SERVE_API_KEY": "sandbox-key"}

    def token_of(self, request: Request) -> str | None:
        """Return the key of a request; one without any is somebody, too."""
        return request.header("x-api-key") or "nobody"

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "convert", "source", "async"):
                return self._source(request)
            case ("POST", "v1", "convert", "file", "async"):
                return self._file(request)
            case ("GET", "v1", "status", "poll", job_id):
                return self.query(request, self._own(request, job_id), self._show)
            case ("GET", "v1", "result", job_id):
                return self.result(request, self._own(request, job_id), self._result)
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        details = {401: "Unauthorized", 404: "Task not found"}
        return Answer.json({"detail": details.get(status, "as scripted")}, status, headers=headers)

    def full(self) -> Answer:
        """Return what a full queue comes to."""
        return self.refuse(503, {"Retry-After": "1"})

    def _own(self, request: Request, job_id: str) -> str:
        """Return the id as the tenant of a request sees it."""
        job = self.jobs.get(job_id)
        is_own = job is None or job.facts["tenant"] == request.header("x-tenant-id")
        return job_id if is_own else ""

    def _source(self, request: Request) -> Answer:
        said = request.json()
        sources = said.get("sources") or []
        if not 1 <= len(sources) <= 3 or sources[0].get("kind") != "http":
            return self.refuse(422)
        target = said.get("target", {}).get("kind", "inbody")
        return self._submit(request, sources[0]["url"], target)

    def _file(self, request: Request) -> Answer:
        parts = request.parts()
        if "files" not in parts or not parts["files"].content:
            return self.refuse(422)
        target = parts["target_type"].text if "target_type" in parts else "inbody"
        return self._submit(request, parts["files"].filename or "", target)

    def _submit(self, request: Request, name: str, target: str) -> Answer:
        tenant = request.header("x-tenant-id")
        return self.submit(request, name, self._show, target=target, tenant=tenant)

    def _show(self, job: Job) -> Answer:
        shown: dict[str, Any] = {
            "task_id": job.id,
            "task_type": "convert",
            "task_status": self.word(job),
            "task_position": 1 if job.state == "queued" else None,
            "task_meta": None,
            "error_message": None,
            "failure": None,
        }
        if job.state == "failed":
            shown["error_message"] = f"cannot read {job.name}"
            shown["failure"] = {
                "category": "conversion",
                "message": f"cannot read {job.name}",
                "retryable": False,
                "phase": "convert",
            }
        return Answer.json(shown)

    def _result(self, job: Job) -> Answer:
        if job.state != "succeeded":
            return Answer.json({"detail": "Task result not found"}, 404)
        if job.facts["target"] == "zip":
            headers = {
                "Content-Type": "application/zip",
                "Content-Disposition": 'attachment; filename="converted_docs.zip"',
            }
            return Answer(200, documents.archive(job), headers=headers)
        is_broken = job.name.rpartition("/")[2].startswith("corrupt")
        errors = [
            {"component_type": "document_backend", "module_name": "m", "error_message": "not a document"}
        ]
        return Answer.json(
            {
                "document": {
                    "filename": job.name,
                    "md_content": None if is_broken else documents.markdown(job),
                    "text_content": None,
                },
                "status": "failure" if is_broken else "success",
                "errors": errors if is_broken else [],
                "processing_time": 0.5,
                "timings": {},
            }
        )
