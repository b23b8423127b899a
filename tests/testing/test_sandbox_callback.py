"""Local vendors that call back, and links that expire: against real tasks, over real sockets."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import frozen

import coatcheck
from coatcheck import (
    Account,
    Call,
    Callback,
    CallbackNote,
    HttpHandler,
    QueryContext,
    QueryParams,
    QueryResult,
    Reply,
    SubmitContext,
    SubmitResult,
    TaskStatus,
    codec,
)
from coatcheck.embedded import Local
from coatcheck.http import callback_url, path
from coatcheck.policy import PollPolicy
from coatcheck.sandbox import Answer, Job, Request, Script, Server, VendorSandbox
from coatcheck.transport import RequestsTransport

PATIENCE = 40.0
HOUR = timedelta(hours=1)


class Herald(VendorSandbox):
    """A vendor that tells of every state."""

    words: ClassVar[Mapping[str, str]] = {
        name: name for name in ("queued", "running", "succeeded", "failed", "canceled")
    }

    def answer(self, request: Request) -> Answer:
        """Route."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "jobs"):
                said = request.json()
                return self.submit(
                    request, said["name"], lambda job: self.show(request, job), callback_url=said.get("call")
                )
            case ("GET", "jobs", job_id):
                return self.query(request, job_id, lambda job: self.show(request, job))
            case ("DELETE", "jobs", job_id):
                return self.cancel(request, job_id, lambda job: self.show(request, job))
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda job: Answer(200, job.name.encode()))
        return self.refuse(404)

    def show(self, request: Request, job: Job) -> Answer:
        """Show a job."""
        return Answer.json({"id": job.id, "word": self.word(job), "link": self.link(request, job, "a.txt")})

    def callback(self, job: Job, url: str) -> Call:
        """Tell of any state."""
        return Call("POST", url, body=codec.dumps({"id": job.id, "word": self.word(job)}))

    def environment(self, url: str) -> Mapping[str, str]:
        """Return nothing."""
        return {}


@codec.persistent("test.herald.request")
@frozen
class HeraldRequest:
    """The name of a job."""

    name: str


class HeraldHandler(HttpHandler[HeraldRequest]):
    """Looks once an hour, unless the vendor calls."""

    key = "test:herald"
    poll = PollPolicy(first=HOUR, start=HOUR, cap=HOUR, jitter=0)

    def __init__(self, base_url: str, call: str | None = None) -> None:
        self.base_url = base_url
        self.call = call

    def sign(self, call: Call, account: Account) -> Call:
        """Add a key that any will do for."""
        return call.with_headers(Authorization="Bearer t")

    def submit_call(self, params: HeraldRequest, context: SubmitContext) -> Call:
        """Submit, and ask for callbacks where an address is known."""
        call = callback_url(self.call, self.key, context.task_id)
        return Call("POST", "/jobs", json={"name": params.name, "call": call})

    def read_submit(self, reply: Reply, params: HeraldRequest, context: SubmitContext) -> SubmitResult:
        """Read a submit."""
        return SubmitResult.submitted(QueryParams(reply.json()["id"]))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Look."""
        return Call("GET", path("jobs", params.external_task_id))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read a look."""
        job = reply.json()
        if job["word"] == "succeeded":
            return QueryResult.succeeded(job["link"], expires_after=HOUR)
        return QueryResult.running(provider_status=job["word"])

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Read what the vendor tells."""
        return callback.note("id")


class Listener:
    """An application's web server: keeps what arrives and answers as it is told."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.statuses: list[int] = []
        self.act: Callable[[Request], None] = lambda _: None

    def __call__(self, request: Request) -> Answer:
        """Take one callback."""
        self.bodies.append(request.json())
        self.act(request)
        return Answer(self.statuses.pop(0) if self.statuses else 204)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.005)


@pytest.fixture
def herald() -> Iterator[Herald]:
    """Return the vendor."""
    with closing(Herald()) as made:
        yield made


@pytest.fixture
def listener() -> Listener:
    """Return the application."""
    return Listener()


@contextmanager
def housed(herald: Herald, folder: Path, call: str | None = None) -> Iterator[Local]:
    """Serve the vendor and run a house for it."""
    with (
        Server(herald) as server,
        coatcheck.local(
            folder / "tasks.db", plugins=False, handlers=[HeraldHandler(server.url, call)]
        ) as house,
    ):
        yield house


def post(name: str, call: str | None) -> Request:
    """Return a submit."""
    body = codec.dumps({"name": name, "call": call})
    return Request("POST", "/jobs", headers={"authorization": "Bearer t"}, body=body)


def test_each_change_of_a_state_is_told_once(herald: Herald, listener: Listener) -> None:
    """After the submit, and whenever a look finds another state; a cancel is a change, too."""
    query = Request("GET", "/jobs/job-1", headers={"authorization": "Bearer t"})
    cancel = Request("DELETE", "/jobs/job-2", headers={"authorization": "Bearer t"})
    with Server(listener) as server:
        herald(post("a~queued=1,polls=2", server.url))
        for _ in range(5):
            herald(query)
        herald(post("b", server.url))
        herald(cancel)
        herald(post("nobody asked", None))
        wait_until(lambda: len(herald.caller.accepted) == 5, "five callbacks")
    told = [(body["id"], body["word"]) for body in listener.bodies]
    assert told == [
        ("job-1", "queued"),
        ("job-1", "running"),
        ("job-1", "succeeded"),
        ("job-2", "queued"),
        ("job-2", "canceled"),
    ]


def test_callback_that_nobody_accepts_is_sent_three_times(
    herald: Herald, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vendors do, and then no more; the next one does not suffer from it."""
    monkeypatch.setattr("coatcheck.sandbox.caller.PAUSE", 0.01)
    listener.statuses = [500, 404, 503, 500]
    with Server(listener) as server:
        herald(post("a", server.url))
        herald(post("b", server.url))
        wait_until(lambda: herald.caller.accepted, "the second callback")
    assert [body["id"] for body in listener.bodies] == ["job-1"] * 3 + ["job-2"] * 2


def test_closed_vendor_calls_nobody_any_more(herald: Herald, listener: Listener) -> None:
    """Its thread ends, and so do its timers; a second close does nothing."""
    with Server(listener) as server:
        herald(post("a~seconds=3600", server.url))
        wait_until(lambda: herald.caller.accepted, "the first callback")
        herald.close()
        herald.close()
        herald(post("b~seconds=3600", server.url))
    assert [body["id"] for body in listener.bodies] == ["job-1"]
    assert not [thread for thread in threading.enumerate() if thread.name == "coatcheck-caller"]


def test_job_whose_time_is_over_ends_though_nobody_looks(herald: Herald, listener: Listener) -> None:
    """Otherwise the one to be told would have to ask first."""
    with Server(listener) as server:
        herald(post("a~polls=9,seconds=0.05", server.url))
        wait_until(lambda: len(listener.bodies) == 2, "the end")
    assert [body["word"] for body in listener.bodies] == ["queued", "succeeded"]


def test_task_ends_at_its_callback_long_before_the_next_look(
    herald: Herald, listener: Listener, tmp_path: Path
) -> None:
    """Told at once, asked once, ended once; the callback of the submit comes before our commit (F72, F74)."""
    with Server(listener) as server, housed(herald, tmp_path, f"{server.url}/{{task_id}}") as house:

        def take(request: Request) -> None:
            house.manager.receive_callback(
                request.path.strip("/"), body=request.body, headers=request.headers
            )

        listener.act = take
        task = house.submit(HeraldRequest("a~seconds=0.3"))
        ended = house.wait(task.id, PATIENCE)
    assert ended.status is TaskStatus.SUCCEEDED
    assert herald.counts["submit"] == 1
    assert herald.counts["query"] <= len(listener.bodies)


def test_task_whose_callback_never_comes_ends_by_polling(herald: Herald, tmp_path: Path) -> None:
    """Nothing but time depends on a callback (F74)."""
    with housed(herald, tmp_path, "http://127.0.0.1:9/{task_id}") as house:
        task = house.submit(HeraldRequest("a~polls=0"))
        wait_until(lambda: house.manager.get(task.id).status is TaskStatus.SUBMITTED, "the submit")
        house.manager.make_due(task.id)  # the hour is over
        assert house.wait(task.id, PATIENCE).status is TaskStatus.SUCCEEDED


def test_expired_link_is_replaced_by_a_refresh_of_the_result(herald: Herald, tmp_path: Path) -> None:
    """One job, one submit: the vendor is asked again, until it has forgotten the job (F80)."""
    herald.script = Script(polls=0, link_life=0.5)
    with housed(herald, tmp_path) as house, closing(RequestsTransport()) as transport:
        task = house.submit(HeraldRequest("a"))
        wait_until(lambda: house.manager.get(task.id).status is TaskStatus.SUBMITTED, "the submit")
        house.manager.make_due(task.id)
        ended = house.wait(task.id, PATIENCE)

        def opened(link: str) -> int:
            return transport.perform(Call("GET", link), Account("nobody", lambda _: "")).status

        wait_until(lambda: opened(ended.result) == 403, "the end of the link")
        herald.script = Script(polls=0, link_life=3600)
        herald.jobs["job-1"].script = herald.script
        fresh = house.manager.refresh_result(task.id)
        assert fresh.result != ended.result
        assert opened(fresh.result) == 200
        assert fresh.result_expires_at is not None
        assert ended.result_expires_at is not None
        assert fresh.result_expires_at > ended.result_expires_at
        herald.forget()
        gone = house.manager.refresh_result(task.id)
    assert (gone.status, gone.result_gone, gone.result) == (TaskStatus.SUCCEEDED, True, fresh.result)
    assert herald.counts["submit"] == 1
