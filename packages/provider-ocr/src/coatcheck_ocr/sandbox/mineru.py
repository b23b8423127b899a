"""The protocols of the MinerU cloud; see ``coatcheck_ocr.mineru`` for where their facts come from."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_ocr.sandbox import documents


class _CloudSandbox(VendorSandbox):
    """What both protocols share: words, envelope, signed places for uploads, and files of results.

    An upload that has a ``Content-Type`` is refused, as by most signed places. The name of the first file of
    a batch says how all of it goes.
    """

    words: ClassVar[Mapping[str, str]] = {
        "queued": "pending",
        "running": "running",
        "succeeded": "done",
        "failed": "failed",
        "canceled": "failed",
    }
    #: Whether places take a file with its type only, as those of another login do.
    wants_type = False

    def ok(self, data: Mapping[str, Any]) -> Answer:
        """Return a reply in its envelope."""
        return Answer.json({"code": 0, "msg": "ok", "trace_id": "trace-1", "data": data})

    def storage(self, request: Request, job_id: str, *rest: str) -> Answer:
        """Give or take a file."""
        match (request.method, *rest):
            case ("PUT", number):
                return self.file(request, job_id, lambda job: self._put(request, job, number))
            case ("GET", number, "result.zip" as name):
                return self.file(request, job_id, lambda job: documents.file(_named(job, int(number)), name))
        return self.file(request, job_id, lambda job: documents.file(job, rest[-1] if rest else ""))

    def _put(self, request: Request, job: Job, number: str) -> Answer:
        if (request.header("content-type") is not None) != self.wants_type or not request.body:
            # A storage service may show keys in what it answers.
            return Answer(403, b"<Error><Code>SignatureDoesNotMatch</Code><Key>storage-key-1</Key></Error>")
        job.facts["missing"].discard(number)
        return Answer(200)

    def task(self, request: Request, job: Job, number: int = 0) -> dict[str, Any]:
        """Return what the vendor says about one document of a job."""
        entry = job.facts["files"][number]
        shown: dict[str, Any] = {"state": self.word(job), "err_msg": ""}
        if "data_id" in entry:
            shown["data_id"] = entry["data_id"]
        if str(number) in job.facts["missing"]:
            shown["state"] = "waiting-file"
        elif job.state == "running":
            pages = {"extracted_pages": round((job.progress or 0) / 10), "total_pages": 10}
            shown["extract_progress"] = {**pages, "start_time": "2026-01-02 03:04:05"}
        elif job.is_end and job.state != "succeeded":
            shown |= {"err_code": -60010, "err_msg": f"cannot read {job.name}"}
        return shown


class MinerUSandbox(_CloudSandbox):
    """Answers like MinerU's API with a token: tasks of URLs, and batches of URLs or uploaded files.

    A batch lists nothing while it is queued, and its files backwards.
    """

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:mineru`` here."""
        return {"COATCHECK_OCR_MINERU_URL": f"{url}/api/v4", "MINERU_TOKEN": "sandbox"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "api", "v4", "extract", "task"):
                said = request.json()
                return self._submit(request, [said], "task_id")
            case ("POST", "api", "v4", "extract", "task", "batch"):
                return self._submit(request, request.json().get("files"), "batch_id")
            case ("POST", "api", "v4", "file-urls", "batch"):
                return self._submit(request, request.json().get("files"), "batch_id", is_upload=True)
            case ("GET", "api", "v4", "extract", "task", job_id):
                return self._look(request, job_id, "task_id", lambda job: self.ok(self._shown(request, job)))
            case ("GET", "api", "v4", "extract-results", "batch", job_id):
                return self._look(request, job_id, "batch_id", lambda job: self._batch(request, job))
            case (_, "storage", job_id, *rest):
                return self.storage(request, job_id, *rest)
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error: under 200 where the vendor does so."""
        if status == 401:
            gateway = {"success": False, "msgCode": "A0202", "msg": "token error", "traceId": "trace-1"}
            return Answer.json(gateway)
        return Answer.json({"code": -10001, "msg": "as scripted"}, status, headers=headers)

    def full(self) -> Answer:
        """Return what a full queue comes to: a code under 200."""
        return Answer.json({"code": -60009, "msg": "the queue is full", "trace_id": "trace-1"})

    def _look(self, request: Request, job_id: str, kind: str, show: Callable[[Job], Answer]) -> Answer:
        job = self.jobs.get(job_id)
        if job is not None and job.facts["kind"] == kind:
            return self.query(request, job_id, show)
        # Under 200, and the same for an id of the other kind.
        unknown = {"code": -60012, "msg": "task not found", "trace_id": "trace-1"}
        return self._act("query", request, self.script, job_id, lambda: Answer.json(unknown))

    def _submit(self, request: Request, files: Any, kind: str, *, is_upload: bool = False) -> Answer:
        key = "name" if is_upload else "url"
        if not isinstance(files, list) or not files or not all(file.get(key) for file in files):
            return Answer.json({"code": -10002, "msg": f"{key} is missing"})
        missing = {str(number) for number in range(len(files))} if is_upload else set()

        def show(job: Job) -> Answer:
            data: dict[str, Any] = {kind: job.id}
            if is_upload:
                places = f"{public_url(request)}/storage/{job.id}"
                data["file_urls"] = [f"{places}/{number}?signature=s" for number in range(len(files))]
            return self.ok(data)

        facts = {"kind": kind, "files": files, "missing": missing}
        return self.submit(request, files[0][key].rpartition("/")[2], show, **facts)

    def _shown(self, request: Request, job: Job, number: int = 0) -> dict[str, Any]:
        shown = self.task(request, job, number)
        if shown["state"] == "done":
            shown["full_zip_url"] = f"{public_url(request)}/storage/{job.id}/{number}/result.zip"
        return {"task_id": job.id, **shown}

    def _batch(self, request: Request, job: Job) -> Answer:
        files = job.facts["files"]
        listed = [
            {
                **self._shown(request, job, number),
                "file_name": files[number].get("name") or files[number]["url"].rpartition("/")[2],
            }
            for number in reversed(range(len(files)))
            if job.state != "queued"
        ]
        return self.ok({"batch_id": job.id, "extract_result": listed})


class MinerUAgentSandbox(_CloudSandbox):
    """Answers like MinerU's API without a token."""

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:mineru-agent`` here."""
        return {"COATCHECK_OCR_MINERU_AGENT_URL": f"{url}/api/v1/agent"}

    def token_of(self, request: Request) -> str | None:
        """Return what lets a request pass: nothing may carry credentials, neither here nor at the storage."""
        has_credentials = request.header("authorization") is not None
        is_storage = request.path.startswith("/storage/")
        return "anybody" if has_credentials == is_storage else None

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "api", "v1", "agent", "parse", "url"):
                return self._submit(request, request.json().get("url"))
            case ("POST", "api", "v1", "agent", "parse", "file"):
                return self._submit(request, request.json().get("file_name"), is_upload=True)
            case ("GET", "api", "v1", "agent", "parse", job_id):
                return self.query(request, job_id, lambda job: self._shown(request, job))
            case (_, "storage", job_id, *rest):
                return self.storage(request, job_id, *rest)
        return self.refuse(404)

    def _submit(self, request: Request, name: str | None, *, is_upload: bool = False) -> Answer:
        if not name:
            return Answer.json({"code": -30004, "msg": "what to read is missing"})

        def show(job: Job) -> Answer:
            place = f"{public_url(request)}/storage/{job.id}/0?signature=s"
            return self.ok({"task_id": job.id, **({"file_url": place} if is_upload else {})})

        facts = {"files": [{}], "missing": {"0"} if is_upload else set()}
        return self.submit(request, name.rpartition("/")[2], show, **facts)

    def _shown(self, request: Request, job: Job) -> Answer:
        shown = self.task(request, job)
        if shown["state"] == "done":
            shown["markdown_url"] = f"{public_url(request)}/storage/{job.id}/result.md"
        return self.ok({"task_id": job.id, **shown})


def _named(job: Job, number: int) -> Job:
    """Return a job under the name of one of its files."""
    name = job.facts["files"][number].get("name")
    return attrs.evolve(job, name=name) if name else job
