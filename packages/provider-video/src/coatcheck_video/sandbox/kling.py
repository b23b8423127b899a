"""The protocol of Kling; see ``coatcheck_video.kling`` for where its facts come from."""

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck import codec
from coatcheck.http import Call
from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_video.sandbox import media

_CODES = {400: 1201, 401: 1002, 403: 1103, 404: 1203, 429: 1302}
#: What each kind wants to be told.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "text2video": ("prompt",),
    "image2video": ("image",),
    "multi-image2video": ("image_list",),
    "omni-video": (),
}
_CREATED = 1_767_000_000_000


class KlingSandbox(VendorSandbox):
    """Answers like Kling. A job goes as its prompt says, or the URL of its first medium."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "submitted",
        "running": "processing",
        "succeeded": "succeed",
        "failed": "failed",
        # The vendor stops no job.
        "canceled": "failed",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {"COATCHECK_VIDEO_KLING_URL": url, "KLING_API_KEY": "sandbox-key"}

    def token_of(self, request: Request) -> str | None:
        """Return the key of a request, or the access key in a signed token that is valid now."""
        token = super().token_of(request)
        if token is None or token.count(".") != 2:
            return token
        try:
            claims = codec.loads(base64.urlsafe_b64decode(f"{token.split('.')[1]}=="))
            return claims["iss"] if claims["nbf"] <= time.time() < claims["exp"] else None
        except (binascii.Error, ValueError, TypeError, LookupError):
            return None

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "videos", kind) if kind in _NEEDED:
                return self._submit(request, kind)
            case ("GET", "v1", "videos", kind, name) if kind in _NEEDED:
                return self._query(request, kind, name)
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        return _refused(status, _CODES.get(status, status * 10), "as scripted", headers)

    def full(self) -> Answer:
        """Return that there are too many parallel jobs."""
        return _refused(429, 1303, "parallel task over resource pack limit")

    def callback(self, job: Job, url: str) -> Call:
        """Tell of any state, in the envelope of a reply and without a signature."""
        headers = {"Content-Type": "application/json"}
        return Call("POST", url, headers=headers, body=codec.dumps(self._shown(None, job)))

    def _submit(self, request: Request, kind: str) -> Answer:
        said = request.json()
        ours = said.get("external_task_id")
        is_wrong = not isinstance(said.get("duration", ""), str) or (
            "aspect_ratio" in said and "image" in said
        )
        if is_wrong or not all(said.get(name) for name in _NEEDED[kind]):
            return self.refuse(400)
        if ours and any(job.facts.get("external_task_id") == ours for job in self.jobs.values()):
            return _refused(400, 1201, "external_task_id already exists")
        name = said.get("prompt") or said.get("image") or "no prompt"
        return self.submit(request, name, lambda job: self._show(request, job), kind=kind, **said)

    def _query(self, request: Request, kind: str, name: str) -> Answer:
        if name in self.jobs or name.startswith("job-"):
            return self.query(
                request,
                name,
                lambda job: self._show(request, job) if job.facts["kind"] == kind else self.refuse(404),
            )
        named = (job for job in self.jobs.values() if job.facts.get("external_task_id") == name)
        found = next((job for job in named if job.facts["kind"] == kind), None)
        script = found.script if found else self.script
        return self._act(
            "lookup",
            request,
            script,
            name,
            lambda: self._show(request, found) if found else self.refuse(404),
        )

    def _show(self, request: Request, job: Job) -> Answer:
        return Answer.json(self._shown(request, job))

    def _shown(self, request: Request | None, job: Job) -> dict[str, Any]:
        """Show a job; a callback has no request to say where the files are."""
        data: dict[str, Any] = {
            "task_id": job.id,
            "task_status": self.word(job),
            "task_info": {"external_task_id": job.facts.get("external_task_id")},
            "created_at": _CREATED,
            "updated_at": _CREATED,
        }
        if job.state in ("failed", "canceled"):
            data["task_status_msg"] = f"will not make {job.name}"
        elif job.state == "succeeded":
            place = public_url(request) if request is not None else "https://files.example"
            seconds = f"{job.facts.get('duration', '5')}.1"
            video = {"id": f"v-{job.id}", "url": f"{place}/files/{job.id}/video.mp4", "duration": seconds}
            data |= {"task_result": {"videos": [video]}, "final_unit_deduction": "2"}
        return {"code": 0, "message": "SUCCEED", "request_id": "r-1", "data": data}


def _refused(status: int, code: int, message: str, headers: Mapping[str, str] = EMPTY) -> Answer:
    body = {"code": code, "message": message, "request_id": "r-0", "data": None}
    return Answer.json(body, status, headers=headers)
