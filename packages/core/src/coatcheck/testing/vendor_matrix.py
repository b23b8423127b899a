"""``VendorMatrix``: the whole life of a vendor's tasks, live against its sandbox, the same for every vendor.

Subclass it, give it the class attributes, say what a request and a result are, and add what only this vendor
has. The tests use real sockets, a store in a file, a worker, and the transport that everybody gets.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import attrs
import pytest

import coatcheck
from coatcheck import TaskStatus
from coatcheck.embedded import Local
from coatcheck.errors import SubmitUnknownError, TaskFailedError
from coatcheck.http import VendorHandler
from coatcheck.model import Phase, Task, Verdict
from coatcheck.policy import PollPolicy
from coatcheck.sandbox import Mounts, Server, VendorSandbox
from coatcheck.worker import WorkerSettings

#: The one that must be seen nowhere.
SECRET = "sandbox-secret-7c41d2"  # noqa: S105  # a made-up one
#: How long a test waits for what has to come, on a machine that may be busy with others.
PATIENCE = timedelta(seconds=40)
#: Asks again at once, so that a job of three queries takes no time.
QUICK = PollPolicy(
    first=timedelta(milliseconds=10),
    start=timedelta(milliseconds=10),
    cap=timedelta(milliseconds=10),
    error_start=timedelta(milliseconds=20),
    error_cap=timedelta(milliseconds=100),
    jitter=0,
)


@attrs.frozen
class Live:
    """A vendor that listens here, and a house whose worker talks to it."""

    sandbox: VendorSandbox
    handler: VendorHandler[Any, Any]
    house: Local
    #: Where the server is that the vendor is mounted on; ``/documents/NAME`` there is a small document.
    url: str
    #: Makes the request whose job goes as a name says.
    make: Callable[[str], Any]

    def request(self, name: str = "a", **changes: Any) -> Any:
        """Return a request whose job goes as its name says, see ``Script.named``; some fields changed."""
        return attrs.evolve(self.make(name), **changes)

    def run(self, name: str = "a", **changes: Any) -> Task:
        """Submit a request and wait for the end of its task, however it ends."""
        task = self.house.submit(self.request(name, **changes))
        return self.house.wait(task.id, PATIENCE)

    def watch(self, task: Task, is_seen: Callable[[Task], bool]) -> Task:
        """Look at a task until something is seen of it; an end that comes first fails the test."""
        until = time.monotonic() + PATIENCE.total_seconds()
        while not is_seen(found := self.house.manager.get(task.id)):
            assert not found.status.is_end, f"the task ended before that was seen: {found}"
            assert time.monotonic() < until, f"that was never seen: {found}"
            time.sleep(0.005)
        return found

    def response(self, name: str = "a", **changes: Any) -> Any:
        """Submit a request and return the result of its task; raises where it has none."""
        return self.house.result(self.house.submit(self.request(name, **changes)).id, PATIENCE)


class VendorMatrix:
    """What every vendor has to get through; a subclass may replace a test where its vendor is different.

    Attributes:
        handler_type: the handler under test.
        sandbox_type: its protocol.
        path: what its base URL has after the place where the protocol is mounted.
        parts: the account's parts; each is a secret that must be seen nowhere. Without any, the vendor needs
            no key.
        unknown_word: a status word of no meaning.
        endless: the name of a job that this vendor lets be canceled.
        lost_code: the code of a task whose job the vendor has forgotten.
    """

    handler_type: ClassVar[type[VendorHandler[Any, Any]]]
    sandbox_type: ClassVar[type[VendorSandbox]]
    path: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ("secret",)
    unknown_word: ClassVar[str] = "warming-up"
    endless: ClassVar[str] = "a~end=never"
    lost_code: ClassVar[str] = "job_lost"

    def request_for(self, name: str, url: str) -> Any:
        """Return a request whose job goes as its name says; see ``Script.named``.

        Args:
            name: what the sandbox must find as the job's name, like ``"a~polls=3"``.
            url: where the server is; ``/documents/NAME`` there is a small document.
        """
        raise NotImplementedError("say how the name of a job is said to this vendor")

    def check_result(self, result: Any) -> None:
        """Check the result of a job that went well."""
        raise NotImplementedError("say what must be in a result")

    def handler_at(self, url: str) -> VendorHandler[Any, Any]:
        """Return the handler for a protocol that is mounted at ``url``."""
        return self.handler_type(f"{url}{self.path}", poll=QUICK)

    @contextmanager
    def living(self, folder: Path, sandbox: VendorSandbox | None = None) -> Iterator[Live]:
        """Serve the vendor and run a house for it."""
        made = sandbox or self.sandbox_type()
        with closing(made), Server(Mounts({self.handler_type.key: made})) as server:
            handler = self.handler_at(Mounts.url(server.url, self.handler_type.key))
            parts = {part: lambda: SECRET for part in self.parts}
            with coatcheck.local(
                folder / "tasks.db",
                plugins=False,
                handlers=[handler],
                accounts={handler.account: parts},
                settings=WorkerSettings(grace=timedelta(seconds=1), threads=4),
            ) as house:
                yield Live(made, handler, house, server.url, partial(self.request_for, url=server.url))

    def skip_without_key(self) -> None:
        """Leave out what is about keys."""
        if not self.parts:
            pytest.skip("this vendor needs no key")

    @pytest.fixture
    def live(self, tmp_path: Path) -> Iterator[Live]:
        """Return the vendor and its house."""
        with self.living(tmp_path) as live:
            yield live

    def test_live_a_job_goes_from_submit_to_result(self, live: Live) -> None:
        """Queued, running, done: one job, each state seen, the result that the vendor made."""
        task = live.run("a~queued=1,polls=2")
        assert task.status is TaskStatus.SUCCEEDED
        self.check_result(task.result)
        assert task.external_task_id in live.sandbox.jobs
        assert task.query_count == 4
        assert live.sandbox.counts["submit"] == 1

    def test_live_a_vendor_failure_ends_the_task_with_its_reason(self, live: Live) -> None:
        """The vendor's code and words reach whoever waits."""
        with pytest.raises(TaskFailedError) as caught:
            live.response("a~end=failed")
        assert caught.value.code.strip()
        assert str(caught.value).strip()

    @pytest.mark.parametrize("call", ["submit", "query"])
    @pytest.mark.parametrize("fault", ["429:0.15", "429"])
    def test_live_a_throttle_delays_and_loses_nothing(self, live: Live, call: str, fault: str) -> None:
        """With a delay or without, the call is made again and the job exists once."""
        task = live.run(f"a~on_{call}={fault}+{fault}")
        assert task.status is TaskStatus.SUCCEEDED
        assert len(live.sandbox.jobs) == 1
        assert live.sandbox.counts[call] >= 3
        assert task.consecutive_errors == 0
        if ":" in fault:
            assert task.finished_at is not None
            assert task.finished_at - task.created_at >= timedelta(seconds=0.3)

    def test_live_a_vendor_without_room_is_asked_again(self, live: Live) -> None:
        """In whatever way this vendor says that it is full, no task fails for it."""
        task = live.run("a~on_submit=busy+busy")
        assert task.status is TaskStatus.SUCCEEDED
        assert len(live.sandbox.jobs) == 1

    @pytest.mark.parametrize("status", [400, 404])
    def test_live_a_refusal_ends_the_task_and_is_not_repeated(self, live: Live, status: int) -> None:
        """What the vendor refused for certain it refuses again, and no job exists."""
        task = live.run(f"a~on_submit={status}+{status}")
        assert task.error is not None
        assert (task.status, task.verdict) == (TaskStatus.FAILED, Verdict.VENDOR)
        assert (task.error.phase, task.submit_attempts) == (Phase.SUBMIT, 1)
        assert live.sandbox.counts["submit"] == 1
        assert not live.sandbox.jobs

    @pytest.mark.parametrize("fault", ["html", "truncate", "500", "reset", "garbage", "empty"])
    def test_live_a_query_that_is_no_answer_is_asked_again(self, live: Live, fault: str) -> None:
        """An error page, a cut-off body, a broken connection: none of them says anything about the job."""
        task = live.run(f"a~on_query={fault}+{fault}")
        assert task.status is TaskStatus.SUCCEEDED
        assert live.sandbox.counts["submit"] == 1

    @pytest.mark.parametrize("fault", ["html", "truncate", "500!", "reset", "garbage"])
    def test_live_a_submit_that_is_no_answer_is_unknown_and_not_repeated(
        self, live: Live, fault: str
    ) -> None:
        """The vendor has made a job, under an id that we never heard: a second one would be paid for too."""
        if live.handler.resubmit == "idempotent":
            assert live.run(f"a~on_submit={fault}").status is TaskStatus.SUCCEEDED
        else:
            with pytest.raises(SubmitUnknownError):
                live.response(f"a~on_submit={fault}")
        assert len(live.sandbox.jobs) == 1

    def test_live_an_unknown_word_is_running_kept_raw_and_warned_of_once(
        self, live: Live, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Vendors invent statuses; the job goes on, and somebody can read about it."""
        word = f"{self.unknown_word}-{live.handler.key.replace(':', '-')}"
        with caplog.at_level(logging.WARNING, "coatcheck.http.vendor"):
            task = live.house.submit(live.request(f"a~end=never,words={'+'.join([word] * 1000)}"))
            seen = live.watch(task, lambda found: found.query_count >= 3)
        assert (seen.status, seen.provider_status) == (TaskStatus.RUNNING, word)
        assert caplog.text.count(f"unknown status '{word}'") == 1

    def test_live_a_forgotten_job_ends_as_lost(self, live: Live) -> None:
        """A vendor that does not know a job any more, time after time, will not know it tomorrow."""
        task = live.house.submit(live.request("a~end=never"))
        live.watch(task, lambda found: found.query_count > 0)
        live.sandbox.forget()
        found = live.house.wait(task.id, PATIENCE)
        assert found.error is not None
        assert (found.status, found.error.code) == (TaskStatus.FAILED, self.lost_code)

    def test_live_a_result_is_fetched_again_until_the_vendor_forgets_it(self, live: Live) -> None:
        """By the same job, for results whose links expire; the task stays succeeded (F80)."""
        task = live.run("a")
        refreshed = live.house.manager.refresh_result(task.id)
        self.check_result(refreshed.result)
        live.sandbox.forget()
        gone = live.house.manager.refresh_result(task.id)
        assert (gone.status, gone.result_gone, gone.result) == (task.status, True, refreshed.result)
        assert live.sandbox.counts["submit"] == 1

    def test_live_no_secret_is_written_anywhere(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Neither the store's files nor any log line has the key, whatever goes wrong (G8)."""
        self.skip_without_key()
        with caplog.at_level(logging.DEBUG), self.living(tmp_path) as live:
            live.run("a")
            live.run("a~end=failed,on_query=html")
            live.run("a~on_submit=400")
            shown = repr(live.handler)
            assert any(SECRET in str(request) for request in live.sandbox.requests), "no call had the key"
            files = [file.read_bytes() for file in tmp_path.glob("tasks.db*")]
        files += [file.read_bytes() for file in tmp_path.glob("tasks.db*")]
        assert files
        assert not any(SECRET.encode() in content for content in files)
        assert SECRET not in caplog.text
        assert SECRET not in shown

    def test_live_a_refused_key_says_so(self, tmp_path: Path) -> None:
        """Whoever mistyped a key reads about the key."""
        self.skip_without_key()
        with self.living(tmp_path, self.sandbox_type(tokens=["another"])) as live:
            task = live.run("a")
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "account_refused")

    def test_live_a_cancel_reaches_the_vendor(self, live: Live) -> None:
        """Where the vendor can stop a job, it is stopped there."""
        if not live.handler.has_cancel:
            pytest.skip("this vendor cannot be asked to stop a job")
        task = live.house.submit(live.request(self.endless))
        live.watch(task, lambda found: found.query_count > 0)
        live.house.manager.cancel(task.id)
        assert live.house.wait(task.id, PATIENCE).status is TaskStatus.CANCELED
        assert [job.state for job in live.sandbox.jobs.values()] == ["canceled"]

    def test_live_a_job_is_asked_about_where_it_was_submitted(self, tmp_path: Path) -> None:
        """A new address of the handler does not move yesterday's jobs, and the key stays at home."""
        with socket.socket() as elsewhere:
            elsewhere.bind(("127.0.0.1", 0))
            other = self.handler_at(f"http://127.0.0.1:{elsewhere.getsockname()[1]}")
            with self.living(tmp_path) as live:
                task = live.run("a")
            assert task.query_params is not None
            assert urlsplit(task.query_params["base_url"]).port == urlsplit(live.url).port
            with pytest.raises(coatcheck.HandlerError, match="earlier_base_urls"):
                other.query_client(task.query_params, None)  # type: ignore[arg-type]  # it is not looked at
            moved = type(other)(other.base_url, earlier_base_urls=[live.handler.base_url])
            client = moved.query_client(task.query_params, None)  # type: ignore[arg-type]  # see above
            assert client.base_url == live.handler.base_url
