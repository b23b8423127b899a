"""The protocol of Aliyun's video models; see ``coatcheck_video.aliyun`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_video.sandbox import media

_CODES = {400: "InvalidParameter", 401: "InvalidApiKey", 403: "AccessDenied", 404: "ModelNotFound"}


class DashScopeSandbox(VendorSandbox):
    """Answers like DashScope. A job goes as its prompt says, or the URL of its first medium."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "PENDING",
        "running": "RUNNING",
        "succeeded": "SUCCEEDED",
        "failed": "FAILED",
        "canceled": "CANCELED",
    }
    #: The part of the variable that leads the handler here.
    variable: ClassVar[str] = ""

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {f"COATCHECK_VIDEO_{self.variable}_URL": f"{url}/api/v1", "DASHSCOPE_API_KEY": "sandbox-key"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "api", "v1", "services", "aigc", kind, "video-synthesis"):
                return self._submit(request, kind)
            case ("GET", "api", "v1", "tasks", job_id):
                if request.header("x-dashscope-async") is not None:
                    return self.refuse(400)
                if job_id not in self.jobs:
                    return self._act("query", request, self.script, job_id, lambda: _unknown(job_id))
                return self.query(request, job_id, lambda job: self._show(request, job))
            case ("POST", "api", "v1", "tasks", job_id, "cancel"):
                return self._cancel(request, job_id)
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        code = "Throttling.RateQuota" if status == 429 else _CODES.get(status, f"E{status}")
        error = {"code": code, "message": "as scripted", "request_id": "r-0"}
        return Answer.json(error, status, headers=headers)

    def full(self) -> Answer:
        """Return a throttle in the way that catches readers of statuses: a code under 200."""
        return Answer.json({"code": "Throttling", "message": "too many requests", "request_id": "r-0"})

    def _submit(self, request: Request, kind: str) -> Answer:
        said = request.json()
        given, model = said.get("input") or {}, str(said.get("model") or "")
        if request.header("x-dashscope-async") != "enable":
            return self.refuse(403)
        if not model or kind != ("image2video" if "kf2v" in model else "video-generation"):
            return self.refuse(400)
        name = given.get("prompt") or next(iter(_urls(given)), "")
        shown = {"parameters": said.get("parameters") or {}, "input": given, "model": model}
        return self.submit(request, name, lambda job: self._show(request, job), **shown)

    def _cancel(self, request: Request, job_id: str) -> Answer:
        job = self.jobs.get(job_id)
        if job is not None and job.state != "queued":
            return self._act("cancel", request, job.script, job_id, lambda: self.refuse(400))
        return self.cancel(request, job_id, lambda _: Answer.json({"request_id": "r-9"}))

    def _show(self, request: Request, job: Job) -> Answer:
        output: dict[str, Any] = {"task_id": job.id, "task_status": self.word(job)}
        shown: dict[str, Any] = {"request_id": "r-1", "output": output}
        if job.state == "failed":
            output |= {"code": "DataInspectionFailed", "message": f"will not make {job.name}"}
        elif job.state == "succeeded":
            seconds = job.facts["parameters"].get("duration", 5)
            output["video_url"] = f"{public_url(request)}/files/{job.id}/video.mp4"
            shown["usage"] = {"video_count": 1, "duration": seconds, "SR": 720, "size": "1280*720"}
        return Answer.json(shown)


class AliyunWanSandbox(DashScopeSandbox):
    """The Wan models."""

    variable = "ALIYUN_WAN"


class AliyunHappyHorseSandbox(DashScopeSandbox):
    """The HappyHorse models."""

    variable = "ALIYUN_HAPPYHORSE"


def _unknown(job_id: str) -> Answer:
    return Answer.json({"request_id": "r-1", "output": {"task_id": job_id, "task_status": "UNKNOWN"}})


def _urls(given: Mapping[str, Any]) -> list[str]:
    media_given = [item.get("url") for item in given.get("media") or ()]
    named = [value for name, value in given.items() if name.endswith("_url")]
    return [url for url in (*media_given, *named, *(given.get("reference_urls") or ())) if url]
