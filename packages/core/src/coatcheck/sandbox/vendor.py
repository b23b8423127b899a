"""``VendorSandbox``: the base of all vendor protocols: jobs that go by their scripts, and faults.

Words, paths and shapes belong to the subclasses, which stand beside the handlers of their vendors. Nothing
here does I/O, but for callbacks, which ``Caller`` posts.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import attrs
from attrs import define

from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck.http import Call
from coatcheck.model import EMPTY
from coatcheck.sandbox.caller import Caller
from coatcheck.sandbox.mount import public_url
from coatcheck.sandbox.script import CALLS, OK, Fault, Script, spoil
from coatcheck.sandbox.server import Answer, Request

#: How many of the latest requests are kept, to be looked at by tests.
KEPT = 1000
#: The fact of a job that says where its callbacks go.
CALLBACK_URL = "callback_url"


@define
class Job:
    """One job of a sandbox vendor."""

    id: str
    #: The document's name, or its URL.
    name: str
    script: Script
    #: What the protocol wants to remember of the submit.
    facts: Mapping[str, Any]
    started: float
    #: The credentials that it was submitted with.
    token: str | None = None
    #: ``"queued"``, ``"running"``, ``"succeeded"``, ``"failed"`` or ``"canceled"``.
    state: str = "queued"
    polls: int = 0
    is_stopping: bool = False

    @property
    def is_end(self) -> bool:
        """Whether the job changes no more."""
        return self.state in ("succeeded", "failed", "canceled")

    def is_live(self, now: float) -> bool:
        """Whether the job runs on: until somebody saw its end, or without ``polls`` until its time is over.

        Args:
            now: by the monotonic clock.
        """
        script = self.script
        if self.is_end or script.end == "never" or script.queued or script.polls:
            return not self.is_end
        return now - self.started < script.seconds

    @property
    def progress(self) -> float | None:
        """Progress of a running job from 0 to 100, as scripted or counted from the polls."""
        turn = self.polls - self.script.queued - 1
        if self.state != "running" or turn < 0:
            return None
        if self.script.progress is not None:
            return self.script.progress[turn] if turn < len(self.script.progress) else None
        return min(99, round(100 * (turn + 1) / (self.script.polls + 1)))

    def look(self) -> None:
        """Move on by one query."""
        script = self.script
        if self.is_end:
            return
        self.polls += 1
        if self.is_stopping:
            self.state = "canceled"
        elif self.polls <= script.queued:
            self.state = "queued"
        elif (
            script.end == "never"
            or self.polls <= script.queued + script.polls
            or time.monotonic() - self.started < script.seconds
        ):
            self.state = "running"
        else:
            self.state = script.end

    def run_out(self) -> None:
        """Move on to the end that comes when the job's time is over, whoever looked or did not."""
        self.polls = max(self.polls, self.script.queued + self.script.polls)
        self.started = float("-inf")
        self.look()


class VendorSandbox(ABC):
    """An ``App`` that speaks one vendor's protocol: subclasses route requests to the methods here.

    How a job goes is said by the name of its document: ``invoice~polls=3,end=failed.pdf``, see
    ``Script.named``; the script of the sandbox holds for the rest.

    Args:
        script: how jobs go whose document says nothing else.
        tokens: the credentials that are accepted; ``None`` accepts all but none at all.
    """

    #: The vendor's words for "queued", "running", "succeeded", "failed" and "canceled".
    words: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *, script: Script | None = None, tokens: Iterable[str] | None = None) -> None:
        self.script = script or Script()
        self.tokens = None if tokens is None else frozenset(tokens)
        self.jobs: dict[str, Job] = {}
        #: The latest requests, oldest first.
        self.requests: deque[Request] = deque(maxlen=KEPT)
        #: How many requests of each kind came in, see ``CALLS``; and "full": submits above ``live_limit``.
        self.counts: Counter[str] = Counter()
        #: Live jobs per credentials; one more is answered as by a vendor that is full. ``None``: any number.
        self.live_limit: int | None = None
        self._lock = threading.RLock()
        self._turns: Counter[tuple[str, str]] = Counter()
        self._next_faults: dict[str, deque[str]] = defaultdict(deque)
        #: Posts the callbacks of a vendor that makes any.
        self.caller = Caller()

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        with self._lock:
            self.requests.append(request)
            return self.answer(request)

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Answer one request by ``submit``, ``query``, ``result``, ``file``, ``cancel`` or ``refuse``."""

    @abstractmethod
    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the vendor's handler here.

        Args:
            url: where this protocol is served, without a trailing slash.
        """

    def close(self) -> None:
        """Make no more callbacks; needed after those of a vendor that makes any. Repeatable."""
        self.caller.close()

    # What a vendor has its own way of.

    def callback(self, job: Job, url: str) -> Call | None:
        """Return the call that tells of a job's state, signed and all; by default a vendor makes none.

        Asked for jobs whose submit named an address, which the protocol keeps as the fact ``callback_url``:
        after the submit, and after each change of ``job.state``. Such a job with ``seconds`` in its script
        ends when these are over, whether anybody looks or not.

        Args:
            job: whose state.
            url: where to.
        """
        return None

    def token_of(self, request: Request) -> str | None:
        """Return the credentials of a request; by default those of a ``Bearer`` header."""
        scheme, _, token = (request.header("authorization") or "").partition(" ")
        return token or None if scheme.lower() == "bearer" else None

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error in the vendor's shape."""
        return Answer.json(
            {"error": {"code": f"status_{status}", "message": "as scripted"}}, status, headers=headers
        )

    def full(self) -> Answer:
        """Return how the vendor says that it has too many jobs; by default 429 without a delay."""
        return self.refuse(429)

    def word(self, job: Job) -> str:
        """Return the vendor's word for a job's state; a script's own ``words`` win."""
        turn = job.polls - job.script.queued - 1
        if job.state == "running" and 0 <= turn < len(job.script.words):
            return job.script.words[turn]
        return self.words[job.state]

    # What subclasses answer with.

    def submit(self, request: Request, name: str, show: Callable[[Job], Answer], **facts: Any) -> Answer:
        """Create a job for the document ``name`` and show it, unless its script says otherwise."""
        try:
            script = Script.named(name, self.script)
        except (UnknownNameError, ValidationError) as error:
            return Answer(400, str(error).encode())

        def create() -> Answer:
            token = self.token_of(request)
            if self.live_limit is not None and self.live(token) >= self.live_limit:
                self.counts["full"] += 1
                return self.full()
            job = Job(self.new_id(), name, script, facts, time.monotonic(), token)
            self.jobs[job.id] = job
            if script.at_once:
                job.state = script.end if script.end != "never" else "running"
            self._tell(job)
            if job.facts.get(CALLBACK_URL) and script.seconds and not job.is_end:
                self.caller.later(script.seconds, partial(self._run_out, job))
            return show(job)

        return self._act("submit", request, script, name, create)

    def query(self, request: Request, job_id: str, show: Callable[[Job], Answer]) -> Answer:
        """Move a job on and show it."""

        def look(job: Job) -> Answer:
            before = job.state
            job.look()
            if job.state != before:
                self._tell(job)
            return show(job)

        return self._of_job("query", request, job_id, look)

    def cancel(self, request: Request, job_id: str, show: Callable[[Job], Answer]) -> Answer:
        """Stop a job as its script says, and show it; ``job.is_stopping`` tells that it will stop."""

        def stop(job: Job) -> Answer:
            if not job.is_end and job.script.cancel == "done":
                job.state = "canceled"
                self._tell(job)
            elif not job.is_end:
                job.is_stopping = job.script.cancel == "accepted"
            return show(job)

        return self._of_job("cancel", request, job_id, stop)

    def file(self, request: Request, job_id: str, show: Callable[[Job], Answer]) -> Answer:
        """Give a file of a job, which takes no credentials: it stands for a storage service."""
        job = self.jobs.get(job_id)
        if self.token_of(request) is not None:
            return Answer(400, b"credentials were sent to a storage service")
        if job is None:
            return Answer(404, b"no such file")
        expires = request.query.get("expires")
        if expires is not None and float(expires) < time.time():
            return Answer(403, b"the link has expired")
        return self._act("result", request, job.script, job.id, lambda: show(job), is_open=True)

    def link(self, request: Request, job: Job, name: str) -> str:
        """Return a link to ``/files/<job>/<name>`` for ``file``; with a script's ``link_life`` it expires."""
        url = f"{public_url(request)}/files/{job.id}/{name}"
        life = job.script.link_life
        return url if life is None else f"{url}?expires={time.time() + life:.3f}"

    def result(self, request: Request, job_id: str, show: Callable[[Job], Answer]) -> Answer:
        """Show a job without moving it on: for vendors that give the result by a call of its own."""
        return self._of_job("result", request, job_id, show)

    def new_id(self) -> str:
        """Return the next job's id."""
        return f"job-{len(self.jobs) + 1}"

    # What tests do.

    def live(self, token: str | None) -> int:
        """Return how many jobs of these credentials are live."""
        now = time.monotonic()
        with self._lock:
            return sum(job.token == token and job.is_live(now) for job in self.jobs.values())

    def fault(self, call: str, *words: str) -> None:
        """Let the next calls of one kind (see ``CALLS``) go wrong, whatever job they are for."""
        if call not in CALLS:
            raise UnknownNameError.of("call", call, CALLS)
        for word in words:
            Fault.of(word)
        self._next_faults[call].extend(words)

    def forget(self) -> None:
        """Lose all jobs, as a vendor does whose retention is over; the requests are kept."""
        with self._lock:
            self.jobs.clear()

    def _tell(self, job: Job) -> None:
        url = job.facts.get(CALLBACK_URL)
        call = self.callback(job, url) if url else None
        if call is not None:
            self.caller.post(call)

    def _run_out(self, job: Job) -> None:
        with self._lock:
            before = job.state
            job.run_out()
            if job.state != before:
                self._tell(job)

    def _of_job(self, kind: str, request: Request, job_id: str, act: Callable[[Job], Answer]) -> Answer:
        job = self.jobs.get(job_id)
        script = job.script if job else self.script
        return self._act(kind, request, script, job_id, lambda: act(job) if job else self.refuse(404))

    def _act(
        self,
        kind: str,
        request: Request,
        script: Script,
        whose: str,
        act: Callable[[], Answer],
        *,
        is_open: bool = False,
    ) -> Answer:
        self.counts[kind] += 1
        if not is_open:
            token = self.token_of(request)
            if token is None or (self.tokens is not None and token not in self.tokens):
                return self.refuse(401)
        fault = self._fault(kind, script, whose)
        answer = act() if fault.is_carried_out else None
        answer = spoil(answer, fault, refuse=self.refuse, full=self.full)
        return attrs.evolve(answer, delay=answer.delay + script.latency) if script.latency else answer

    def _fault(self, kind: str, script: Script, whose: str) -> Fault:
        if self._next_faults[kind]:
            return Fault.of(self._next_faults[kind].popleft())
        words: tuple[str, ...] = getattr(script, f"on_{kind}")
        turn = self._turns[kind, whose]
        if turn >= len(words):
            return OK
        self._turns[kind, whose] += 1
        return Fault.of(words[turn])
