"""A local vendor: real HTTP, scripted states and faults, and a log that survives whoever called.

Run it inside a test (``LocalVendor``), as a process (``VendorProcess``, ``python -m
coatcheck.testing.vendor``) for tests that kill things, or without a socket
(``transport.answered_by(Vendor())``). The handlers for it are here too. It is for tests only.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import attrs
from attrs import define, field, frozen

from coatcheck import codec
from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck.http import Call, HttpHandler, Reply, path
from coatcheck.model import (
    Account,
    CancelResult,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
)
from coatcheck.policy import PollPolicy
from coatcheck.sandbox import CALLS, Answer, Fault, Request, Script, Server, spoil
from coatcheck.sandbox.script import OK


@frozen(kw_only=True)
class VendorCall:
    """One call that arrived, as it is kept and logged."""

    #: When it arrived, in seconds since the epoch.
    at: float
    call: str
    status: int
    fault: str = "ok"
    #: The idempotency key that came with it.
    key: str | None = None
    #: The credentials that came with it.
    token: str | None = None
    job: str | None = None
    #: The text of the job's request, which tells tasks apart where no key is sent.
    text: str | None = None
    #: Whether this call created the job.
    created: bool = False


_FIELDS = tuple(attribute.name for attribute in attrs.fields(VendorCall))


@define
class _Job:
    id: str
    text: str
    key: str | None
    token: str | None
    script: Script
    started: float
    polls: int = 0
    state: str = "queued"
    is_stopping: bool = False

    def is_live(self, now: float) -> bool:
        if self.state in ("succeeded", "failed", "canceled"):
            return False
        script = self.script
        waits_for_polls = bool(script.queued or script.polls)
        return script.end == "never" or waits_for_polls or now - self.started < script.seconds


class Vendor:
    """The vendor itself: an ``App`` with jobs, to be served or called directly.

    Args:
        script: how jobs go whose request says nothing else.
        honours_key: whether a repeated ``Idempotency-Key`` returns the job that it made before.
        live_limit: live jobs per credentials; one more is answered with 429.
        tokens: the credentials that are accepted; ``None`` accepts all, and none.
        log: a file to which each call is appended as one line of JSON before it is answered.
        keep: whether calls are kept in ``calls``; long benchmarks turn it off.
    """

    def __init__(
        self,
        *,
        script: Script | None = None,
        honours_key: bool = True,
        live_limit: int | None = None,
        tokens: Iterable[str] | None = None,
        log: Path | None = None,
        keep: bool = True,
    ) -> None:
        self.script = script or Script()
        self.honours_key = honours_key
        self.live_limit = live_limit
        self.tokens = None if tokens is None else frozenset(tokens)
        self.calls: list[VendorCall] = []
        self._keep = keep
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._by_key: dict[str, _Job] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._next_faults: dict[str, deque[str]] = defaultdict(deque)

    def fault(self, call: str, *words: str) -> None:
        """Let the next calls of one kind (see ``CALLS``) go wrong, whatever job they are for."""
        if call not in CALLS:
            raise UnknownNameError.of("call", call, CALLS)
        for word in words:
            Fault.of(word)
        self._next_faults[call].extend(words)

    def count(self, call: str) -> int:
        """Return how many calls of one kind arrived."""
        if call not in CALLS:
            raise UnknownNameError.of("call", call, CALLS)
        return sum(seen.call == call for seen in list(self.calls))

    @property
    def created(self) -> Counter[str]:
        """How many jobs were created for each request's text."""
        return created(list(self.calls))

    def live(self, token: str | None = None) -> int:
        """Return how many jobs of these credentials are live."""
        with self._lock:
            return self._live(token)

    def finish(self, text: str, state: Literal["succeeded", "failed", "canceled"] = "succeeded") -> None:
        """End the jobs of one request now."""
        with self._lock:
            for job in self._jobs.values():
                if job.text == text:
                    job.state = state

    def forget(self) -> None:
        """Lose all jobs, as a vendor does that was restarted; the calls are kept."""
        with self._lock:
            self._jobs.clear()
            self._by_key.clear()

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        with self._lock:
            return self._answer(request)

    def _answer(self, request: Request) -> Answer:
        at = time.time()
        token = (request.header("authorization") or "").removeprefix("Bearer ") or None
        key = request.header("idempotency-key")
        segments = request.path.strip("/").split("/")
        match (request.method, *segments):
            case ("POST", "jobs"):
                kind, job = "submit", None
            case ("GET", "jobs"):
                kind, key = "lookup", request.query.get("key")
                job = self._by_key.get(key or "")
            case ("GET", "jobs", number):
                kind, job = "query", self._jobs.get(number)
            case ("POST", "jobs", number, "cancel"):
                kind, job = "cancel", self._jobs.get(number)
            case _:
                return Answer.json({"error": {"code": "no_such_address"}}, 404)
        text = job.text if job else None
        script = job.script if job else self.script
        refusal = None
        if kind == "submit":
            try:
                body = request.json()
                text = str(body["text"])
                script = Script.of(body.get("script") or {}, self.script)
            except (ValueError, TypeError, KeyError, UnknownNameError, ValidationError) as error:
                refusal = Answer.json({"error": {"code": "bad_request", "message": str(error)}}, 400)
        if self.tokens is not None and token not in self.tokens:
            # Vendors do say this.
            refusal = Answer.json({"error": {"code": "bad_key", "message": f"unknown key {token}"}}, 401)
        fault = self._fault(kind, script, key or text or request.path) if refusal is None else OK
        created, answer = False, refusal
        if answer is None and fault.is_carried_out:
            if kind == "submit":
                before = len(self._jobs)
                answer, job = self._submit(str(text), key, token, script)
                created = len(self._jobs) > before
            else:
                answer = getattr(self, f"_{kind}")(job)
        answer = spoil(answer, fault)
        if script.latency:
            answer = attrs.evolve(answer, delay=answer.delay + script.latency)
        self._note(
            VendorCall(
                at=at,
                call=kind,
                status=answer.status,
                fault=fault.word,
                key=job.key if job and key is None else key,
                token=token,
                job=job.id if job else None,
                text=text,
                created=created,
            )
        )
        return answer

    def _fault(self, kind: str, script: Script, whose: str) -> Fault:
        if self._next_faults[kind]:
            return Fault.of(self._next_faults[kind].popleft())
        words: tuple[str, ...] = getattr(script, f"on_{kind}")
        if not words:
            return OK
        turn = self._seen[kind, whose]
        self._seen[kind, whose] += 1
        return Fault.of(words[turn]) if turn < len(words) else OK

    def _submit(
        self, text: str, key: str | None, token: str | None, script: Script
    ) -> tuple[Answer, _Job | None]:
        job = self._by_key.get(key or "") if self.honours_key else None
        if job is None:
            if self.live_limit is not None and self._live(token) >= self.live_limit:
                return Answer.json({"error": {"code": "too_many_jobs"}}, 429), None
            job = _Job(f"job-{len(self._jobs) + 1}", text, key, token, script, time.monotonic())
            self._jobs[job.id] = job
            if key is not None:
                self._by_key[key] = job
            if script.at_once:
                job.state = script.end if script.end != "never" else "running"
        return Answer.json(self._show(job), 201), job

    def _query(self, job: _Job | None) -> Answer:
        if job is None:
            return Answer.json({"error": {"code": "no_such_job"}}, 404)
        if job.state in {"queued", "running"}:
            self._move(job)
        return Answer.json(self._show(job))

    def _cancel(self, job: _Job | None) -> Answer:
        if job is None:
            return Answer.json({"error": {"code": "no_such_job"}}, 404)
        if job.state in ("succeeded", "failed") or job.script.cancel == "refused":
            return Answer.json({"cancel": "refused"})
        if job.script.cancel == "done":
            job.state = "canceled"
        else:
            job.is_stopping = True
        return Answer.json({"cancel": job.script.cancel})

    def _lookup(self, job: _Job | None) -> Answer:
        return Answer.json({"jobs": [self._show(job)] if job else []})

    def _move(self, job: _Job) -> None:
        script = job.script
        job.polls += 1
        if job.is_stopping:
            job.state = "canceled"
        elif job.polls <= script.queued:
            job.state = "queued"
        elif (
            script.end == "never"
            or job.polls <= script.queued + script.polls
            or time.monotonic() - job.started < script.seconds
        ):
            job.state = "running"
        else:
            job.state = script.end

    def _show(self, job: _Job) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": job.id, "status": job.state}
        script = job.script
        if job.state == "running":
            turn = job.polls - script.queued - 1
            if 0 <= turn < len(script.words):
                shown["status"] = script.words[turn]
            if script.progress is None:
                shown["progress"] = min(99, round(100 * max(0, turn + 1) / (script.polls + 1)))
            elif 0 <= turn < len(script.progress):
                shown["progress"] = script.progress[turn]
            if script.poll_after is not None:
                shown["poll_after"] = script.poll_after
        elif job.state == "succeeded":
            shown["output"] = {"text": job.text.upper()}
            shown["usage"] = {"pages": 1}
        elif job.state == "failed":
            shown["error"] = {"code": "bad_input", "message": f"cannot work on {job.text!r}"}
        return shown

    def _live(self, token: str | None) -> int:
        now = time.monotonic()
        return sum(job.token == token and job.is_live(now) for job in self._jobs.values())

    def _note(self, call: VendorCall) -> None:
        if self._keep:
            self.calls.append(call)
        if self._log is not None:
            line = {name: getattr(call, name) for name in _FIELDS}
            # One write to a file opened for appending: a kill leaves whole lines.
            os.write(self._log, codec.dumps(line) + b"\n")


def created(calls: Iterable[VendorCall]) -> Counter[str]:
    """Return how many jobs were created for each request's text."""
    return Counter(call.text or "" for call in calls if call.created)


def read_log(log: Path) -> list[VendorCall]:
    """Return the calls in a vendor's log; unknown fields of a newer one are left out."""
    return [
        VendorCall(**{name: value for name, value in codec.loads(line).items() if name in _FIELDS})
        for line in log.read_bytes().splitlines()
    ]


class LocalVendor(Vendor):
    """A vendor that is served over HTTP by a thread of this process; takes the arguments of ``Vendor``.

    ``with LocalVendor(script=Script(polls=3)) as vendor: … vendor.url …``
    """

    def __init__(self, *, port: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self._server = Server(self, port=port)
        self.url = self._server.url

    def disconnect(self) -> None:
        """Close all connections quietly, as a vendor does with those that idle for too long."""
        self._server.disconnect()

    def close(self) -> None:
        """End the server and close the log; a second call does nothing."""
        self._server.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VendorProcess:
    """A vendor in a process of its own, for tests that kill workers and for benchmarks.

    It ends with ``close``, or with this process, however that ends.

    Args:
        log: where its calls are logged; ``calls`` reads them.
        script: how jobs go whose request says nothing else.
        options: further options of ``python -m coatcheck.testing.vendor``, like ``"--ignore-keys"``.
    """

    def __init__(
        self, log: Path | None = None, *, script: Mapping[str, Any] | None = None, options: Iterable[str] = ()
    ) -> None:
        command = [sys.executable, "-m", "coatcheck.testing.vendor", "--with-stdin", *options]
        if log is not None:
            command += ["--log", str(log)]
        if script is not None:
            Script.of(script)
            command += ["--script", codec.dumps(dict(script)).decode()]
        self.log = log
        self._process = subprocess.Popen(  # noqa: S603  # our own module, in our own interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(
                f"the vendor did not start (exit code {self._process.returncode}); its output says why"
            )
        self.url = line.decode().strip()

    @property
    def calls(self) -> list[VendorCall]:
        """The calls that its log has now."""
        return read_log(self.log) if self.log is not None and self.log.exists() else []

    @property
    def created(self) -> Counter[str]:
        """How many jobs were created for each request's text."""
        return created(self.calls)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# The handlers for it.


@codec.persistent("test.job")
@frozen
class JobRequest:
    """A request to the local vendor, which answers with the text in capitals."""

    text: str
    #: Values of ``Script`` for this job.
    script: dict[str, Any] = field(factory=dict, kw_only=True)

    @classmethod
    def of(cls, text: str, **script: Any) -> "JobRequest":
        """Return a request with a script: ``JobRequest.of("a", polls=3, on_submit=["reset"])``.

        Raises:
            UnknownNameError: the script has no such value.
        """
        Script.of(script)
        return cls(text, script=script)


@codec.persistent("test.result")
@frozen
class JobResult:
    """What the local vendor made of a request."""

    text: str


class PlainVendorHandler(HttpHandler[JobRequest]):
    """Submits and queries, and nothing more: no key is sent, so a lost reply means that nobody knows.

    Args:
        base_url: where the vendor is.
        key: the handler's key; the class has a default.
        account: the default account; its secret is sent if ``signs``.
        signs: whether calls carry the account's secret.
        poll: the pace of queries; by default 20 ms, so that tests are quick.
        call_limit: the hard limit of a step; calls time out at half of it.
    """

    key = "test:plain"
    poll = PollPolicy(
        first=timedelta(milliseconds=20),
        start=timedelta(milliseconds=20),
        cap=timedelta(milliseconds=20),
        error_start=timedelta(milliseconds=50),
        error_cap=timedelta(seconds=1),
        jitter=0.0,
    )
    call_limit = timedelta(seconds=10)
    sends_key = False

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        account: str | None = None,
        signs: bool = False,
        poll: PollPolicy | None = None,
        call_limit: timedelta | None = None,
    ) -> None:
        self.base_url = base_url
        self.signs = signs
        self.key = key or type(self).key
        self.account = account or type(self).account
        self.poll = poll or type(self).poll
        self.call_limit = call_limit or type(self).call_limit

    def sign(self, call: Call, account: Account) -> Call:
        """Add the account's secret."""
        return call.with_headers(Authorization=f"Bearer {account.secret()}") if self.signs else call

    def submit_call(self, params: JobRequest, context: SubmitContext) -> Call | SubmitResult:
        """Describe the submit."""
        return Call(
            "POST",
            "/jobs",
            headers={"Idempotency-Key": context.idempotency_key} if self.sends_key else {},
            json={"text": params.text, "script": params.script},
            timeout=self.call_limit / 2,
        )

    def read_submit(self, reply: Reply, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to a submit."""
        job = reply.json()
        query_params = QueryParams(job["id"])
        match job["status"]:
            case "succeeded":
                return SubmitResult.succeeded(JobResult(job["output"]["text"]), usage=job["usage"])
            case "failed":
                return SubmitResult.failed(job["error"]["code"], job["error"]["message"])
            case "queued":
                return SubmitResult.submitted(query_params, provider_status="queued")
            case word:
                return SubmitResult.running(query_params, job.get("progress"), provider_status=word)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call | QueryResult:
        """Describe the query."""
        return Call("GET", path("jobs", params.external_task_id), timeout=self.call_limit / 2)

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read the reply to a query."""
        job = reply.json()
        match job["status"]:
            case "succeeded":
                return QueryResult.succeeded(JobResult(job["output"]["text"]), usage=job["usage"])
            case "failed":
                return QueryResult.failed(job["error"]["code"], job["error"]["message"])
            case "canceled":
                return QueryResult.canceled(provider_status="canceled")
            case "queued":
                return QueryResult.submitted(provider_status="queued")
            case word:
                after = job.get("poll_after")
                return QueryResult.running(
                    job.get("progress"),
                    provider_status=word,
                    query_after=None if after is None else timedelta(seconds=after),
                )


class _Cancels(PlainVendorHandler):
    """Adds the remote cancel."""

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel."""
        return Call("POST", path("jobs", params.external_task_id, "cancel"), timeout=self.call_limit / 2)

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to a cancel."""
        match reply.json()["cancel"]:
            case "done":
                return CancelResult.done()
            case "refused":
                return CancelResult.refused("the vendor will not stop the job")
            case _:
                return CancelResult.accepted()


class VendorHandler(_Cancels):
    """Sends our idempotency key, may therefore submit again, and can cancel."""

    key = "test:vendor"
    resubmit = "idempotent"
    sends_key = True


class LookupVendorHandler(_Cancels):
    """Never submits again, but asks the vendor for the job of our key."""

    key = "test:lookup"
    sends_key = True

    def lookup_call(self, params: JobRequest, context: SubmitContext) -> Call:
        """Describe the lookup."""
        return Call("GET", "/jobs", query={"key": context.idempotency_key}, timeout=self.call_limit / 2)

    def read_lookup(self, reply: Reply, params: JobRequest, context: SubmitContext) -> LookupResult:
        """Read the reply to a lookup."""
        jobs = reply.json()["jobs"]
        return LookupResult.found(QueryParams(jobs[0]["id"])) if jobs else LookupResult.not_found()


def main(arguments: list[str] | None = None) -> None:
    """Print the URL of a vendor and serve it until SIGTERM, SIGINT or (``--with-stdin``) the end of input."""
    parser = argparse.ArgumentParser(
        prog="python -m coatcheck.testing.vendor", description="A local vendor for tests."
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, help="append each call to this file, as one line of JSON")
    parser.add_argument("--script", default="{}", help="values of Script, as JSON")
    parser.add_argument("--ignore-keys", action="store_true", help="make a new job for a repeated key")
    parser.add_argument("--live-limit", type=int, help="live jobs per credentials")
    parser.add_argument("--keep", action="store_true", help="keep the calls in memory too")
    parser.add_argument("--with-stdin", action="store_true", help="end when the standard input ends")
    given = parser.parse_args(arguments)
    signals = {signal.SIGTERM, signal.SIGINT}
    # Before the server's thread exists, so that it inherits the mask and the signals come here.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with LocalVendor(
        port=given.port,
        script=Script.of(codec.loads(given.script)),
        honours_key=not given.ignore_keys,
        live_limit=given.live_limit,
        log=given.log,
        keep=given.keep,
    ) as vendor:
        print(vendor.url, flush=True)  # noqa: T201  # whoever started the process reads it
        if given.with_stdin:
            threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
        signal.sigwait(signals)


def _stop_at_end_of_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
