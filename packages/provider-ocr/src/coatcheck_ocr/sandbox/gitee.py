"""The protocol of Gitee AI; see ``coatcheck_ocr.gitee`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_ocr.sandbox import documents


class GiteeSandbox(VendorSandbox):
    """Answers like Gitee AI.

    The result is inline; with ``output_format`` it is a link to a markdown file, and with a model of the
    MinerU or PDF-Extract-Kit family a link to an archive.
    """

    words: ClassVar[Mapping[str, str]] = {
        "queued": "waiting",
        "running": "in_progress",
        "succeeded": "success",
        "failed": "failure",
        "canceled": "cancelled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:gitee`` here."""
        return {"COATCHECK_OCR_GITEE_URL": f"{url}/v1", "GITEE_API_KEY": "sandbox-key"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "async", "documents", "parse"):
                return self._submit(request)
            case ("GET", "v1", "task", job_id):
                return self.query(request, job_id, lambda job: self._show(request, job))
            case ("POST", "v1", "task", job_id, "cancel"):
                return self.cancel(request, job_id, lambda job: self._show(request, job))
            case ("GET", "files", job_id, *_, name):
                return self.file(request, job_id, lambda job: documents.file(job, name))
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        error = {"code": f"e{status}", "type": "invalid_request", "message": "as scripted"}
        return Answer.json({"error": error}, status, headers=headers)

    def full(self) -> Answer:
        """Return what too many running tasks come to: a task that failed at once, under 200."""
        return Answer.json(
            {"task_id": "T0", "status": "failure", "output": {"error": "too many running tasks, try later"}}
        )

    def _submit(self, request: Request) -> Answer:
        parts = request.parts()
        if "file" not in parts or "model" not in parts or not parts["file"].content:
            return self.refuse(422)
        said = {name: part.text for name, part in parts.items() if name != "file"}
        name = parts["file"].filename or ""
        return self.submit(request, name, lambda job: self._show(request, job), **said)

    def _show(self, request: Request, job: Job) -> Answer:
        here = public_url(request)
        shown: dict[str, Any] = {
            "task_id": job.id,
            "status": self.word(job),
            "created_at": 1764000000,
            "urls": {"get": f"{here}/v1/task/{job.id}", "cancel": f"{here}/v1/task/{job.id}/cancel"},
        }
        if job.state == "succeeded":
            shown["output"] = self._output(here, job)
            shown["completed_at"] = 1764000009000
        elif job.state == "failed":
            shown["error"] = {"code": "bad_document", "message": f"cannot read {job.name}"}
        return Answer.json(shown)

    def _output(self, here: str, job: Job) -> dict[str, Any]:
        files = f"{here}/files/{job.id}"
        if "output_format" in job.facts:
            return {"markdown_url": f"{files}/result.md"}
        if job.facts["model"].startswith(("MinerU", "PDF-Extract-Kit")):
            return {"full_zip_url": f"{files}/result.zip"}
        lines = documents.markdown(job).split("\n")
        # Indexes begin again with each batch.
        return {"segments": [{"index": number % 2, "content": line} for number, line in enumerate(lines)]}
