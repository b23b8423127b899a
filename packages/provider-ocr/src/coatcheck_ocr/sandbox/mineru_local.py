"""The protocols of a MinerU server; see ``coatcheck_ocr.mineru_local`` for where their facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox
from coatcheck_ocr.sandbox import documents


class MinerULocalSandbox(VendorSandbox):
    """Answers like a server of version 4 that was given a key; a document's name must have a suffix."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "queued",
        "running": "running",
        "succeeded": "completed",
        "failed": "failed",
        "canceled": "canceled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:mineru-local`` here."""
        return {"COATCHECK_OCR_MINERU_LOCAL_URL": url, "MINERU_API_KEY": "sandbox"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "tasks"):
                return self._submit(request)
            case ("GET", "v1", "tasks", job_id):
                return self.query(request, job_id, self._show)
            case ("GET", "v1", "tasks", job_id, "result"):
                return self.result(request, job_id, lambda job: self._result(request, job))
            case ("DELETE", "v1", "tasks", job_id):
                was_over = job_id in self.jobs and self.jobs[job_id].is_end
                return self.cancel(request, job_id, lambda job: self._over() if was_over else self._show(job))
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        error = {"type": "invalid_request_error", "code": f"e{status}", "message": "as scripted"}
        return Answer.json({"error": {**error, "param": None}}, status, headers=headers)

    def _over(self) -> Answer:
        error = {"type": "invalid_request_error", "code": "job_already_terminal", "message": "it has ended"}
        return Answer.json({"error": error}, 409)

    def _submit(self, request: Request) -> Answer:
        part = request.parts().get("files")
        if part is not None:
            name = (part.filename or "") if part.content else ""
        else:
            try:
                name = request.json()["files"][0]["source"]["url"].rpartition("/")[2]
            except (ValueError, LookupError, TypeError):
                name = ""
        if "." not in name:
            return self.refuse(400)
        return self.submit(request, name, lambda job: self._show(job, 202))

    def _show(self, job: Job, status: int = 200) -> Answer:
        file: dict[str, Any] = {"file_id": f"file-{job.id}", "name": job.name, "status": self.word(job)}
        if job.state == "succeeded":
            file |= {
                "parse": {"duration_ms": 12, "parser_version": "4.0.12"},
                "output_files": {"markdown": None, "zip": {"file_id": f"zip-{job.id}", "bytes": 99}},
            }
        elif job.state == "failed":
            error = {"type": "engine_error", "code": "parse_failed", "message": f"cannot read {job.name}"}
            file["error"] = {**error, "param": None}
        shown = {
            "task_id": job.id,
            "status": self.word(job),
            "progress": {"completed": int(job.state == "succeeded"), "failed": 0, "total": 1},
            "files": [file],
            "status_url": f"/v1/tasks/{job.id}",
            "result_url": f"/v1/tasks/{job.id}/result",
        }
        return Answer.json(shown, status)

    def _result(self, request: Request, job: Job) -> Answer:
        if not job.is_end:
            return self._show(job, 202)
        if job.state != "succeeded":
            return self._show(job, 409)
        if request.query.get("response_format") != "zip":
            return self.refuse(400)
        return Answer(200, documents.archive(job), headers={"Content-Type": "application/zip"})


class MinerUV3Sandbox(VendorSandbox):
    """Answers like a server of version 3, which knows no keys."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "pending",
        "running": "processing",
        "succeeded": "completed",
        "failed": "failed",
        "canceled": "failed",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:mineru-local-v3`` here."""
        return {"COATCHECK_OCR_MINERU_LOCAL_V3_URL": url}

    def token_of(self, request: Request) -> str | None:
        """Let every request pass that carries no credentials."""
        return "anybody" if request.header("authorization") is None else None

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "tasks"):
                return self._submit(request)
            case ("GET", "tasks", job_id):
                return self.query(request, job_id, self._show)
            case ("GET", "tasks", job_id, "result"):
                return self.result(request, job_id, self._result)
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        return Answer.json({"detail": "as scripted"}, status, headers=headers)

    def _submit(self, request: Request) -> Answer:
        parts = request.parts()
        if "files" not in parts or not parts["files"].content:
            return self.refuse(422)
        said = {name: part.text for name, part in parts.items() if name != "files"}
        if said.get("response_format_zip") != "true":
            return self.refuse(422)
        return self.submit(request, parts["files"].filename or "", lambda job: self._show(job, 202), **said)

    def _show(self, job: Job, status: int = 200) -> Answer:
        shown = {"task_id": job.id, "status": self.word(job), "file_names": [job.name.partition(".")[0]]}
        if job.state == "failed":
            shown["error"] = f"cannot read {job.name}"
        return Answer.json(shown, status)

    def _result(self, job: Job) -> Answer:
        if job.state != "succeeded":
            return self._show(job, 409 if job.is_end else 202)
        return Answer(200, documents.archive(job), headers={"Content-Type": "application/zip"})
