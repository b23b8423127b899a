"""The local vendor does what its script says, and its log proves it."""

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coatcheck import codec
from coatcheck.errors import (
    CoatcheckError,
    HandlerError,
    JobNotFoundError,
    MaybeSentError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.handler import resolve
from coatcheck.model import Account, QueryContext, QueryParams, QueryResult, SubmitContext, TaskStatus
from coatcheck.sandbox import Script
from coatcheck.testing.transport import ScriptedTransport, answered_by
from coatcheck.testing.vendor import (
    JobRequest,
    JobResult,
    LocalVendor,
    LookupVendorHandler,
    PlainVendorHandler,
    Vendor,
    VendorHandler,
    VendorProcess,
    read_log,
)
from coatcheck.transport import RequestsTransport

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def transport() -> Iterator[RequestsTransport]:
    """Return the transport that all tests call over."""
    with RequestsTransport() as transport:
        yield transport
    gc.collect()


@pytest.fixture
def vendor() -> Iterator[LocalVendor]:
    """Return a vendor."""
    with LocalVendor() as vendor:
        yield vendor
    gc.collect()


class Client:
    """Runs a handler's steps by hand."""

    def __init__(self, handler: PlainVendorHandler, transport: Any, *, token: str = "token-1") -> None:
        self.handler = handler
        self.transport = transport
        self.account = Account("default", lambda _: token)

    def submit_context(self, key: str) -> SubmitContext:
        """Return a context with this idempotency key."""
        return SubmitContext(
            task_id=key, idempotency_key=key, now=NOW, account=self.account, transport=self.transport
        )

    def query_context(self) -> QueryContext:
        """Return a context for a query."""
        return QueryContext(
            task_id="t",
            created_at=NOW,
            deadline_at=NOW + timedelta(days=1),
            now=NOW,
            account=self.account,
            transport=self.transport,
        )

    def submit(self, key: str = "key-1", text: str = "a", **script: Any) -> QueryParams:
        """Submit a job and return its params."""
        result = self.handler.submit(JobRequest.of(text, **script), self.submit_context(key))
        assert result.query_params is not None
        return result.query_params

    def query(self, job: QueryParams) -> QueryResult:
        """Query a job."""
        return self.handler.query(job, self.query_context())

    def cancel(self, job: QueryParams) -> str:
        """Cancel a job and return the outcome."""
        return self.handler.cancel(job, self.query_context()).outcome


@pytest.fixture
def client(vendor: LocalVendor, transport: RequestsTransport) -> Client:
    """Return a client of the vendor that sends keys and credentials."""
    return Client(VendorHandler(vendor.url, signs=True), transport)


def error_of(step: Any, *arguments: Any, **keywords: Any) -> CoatcheckError:
    """Return the error that a step raises."""
    with pytest.raises(CoatcheckError) as caught:
        step(*arguments, **keywords)
    return caught.value


# Jobs.


def test_a_job_goes_through_its_states(client: Client, vendor: LocalVendor) -> None:
    """Queued, running with progress, and the end, each as often as the script says."""
    job = client.submit(queued=1, polls=2)
    seen = [client.query(job) for _ in range(4)]
    assert [result.status for result in seen] == [
        TaskStatus.SUBMITTED,
        TaskStatus.RUNNING,
        TaskStatus.RUNNING,
        TaskStatus.SUCCEEDED,
    ]
    assert [result.progress for result in seen] == [None, 33, 67, None]
    assert seen[-1].result == JobResult("A")
    assert seen[-1].usage == {"pages": 1}
    assert client.query(job).status is TaskStatus.SUCCEEDED
    assert (vendor.count("submit"), vendor.count("query")) == (1, 5)


def test_words_progress_and_pace_are_scripted(client: Client) -> None:
    """What a vendor may say while it works is whatever a test needs it to say."""
    job = client.submit(polls=3, words=["frobnicating"], progress=[10, 30, 20], poll_after=7)
    seen = [client.query(job) for _ in range(3)]
    assert [result.provider_status for result in seen] == ["frobnicating", "running", "running"]
    assert [result.progress for result in seen] == [10, 30, 20]
    assert seen[0].query_after == timedelta(seconds=7)


@pytest.mark.parametrize(
    ("end", "status"), [("failed", TaskStatus.FAILED), ("canceled", TaskStatus.CANCELED)]
)
def test_a_job_may_end_badly(client: Client, end: str, status: TaskStatus) -> None:
    """Ends that are no success come from the vendor too."""
    result = client.query(client.submit(polls=0, end=end))
    assert result.status is status
    assert (result.error is not None) == (end == "failed")


def test_a_job_may_be_done_at_once_or_never(client: Client, vendor: LocalVendor) -> None:
    """The two extremes of a vendor's pace."""
    context = client.submit_context("key-1")
    assert client.handler.submit(JobRequest.of("now", at_once=True), context).result == JobResult("NOW")
    failed = client.handler.submit(
        JobRequest.of("bad", at_once=True, end="failed"), client.submit_context("key-2")
    )
    assert failed.status is TaskStatus.FAILED
    job = client.submit("key-3", "never", polls=0, end="never")
    assert all(client.query(job).status is TaskStatus.RUNNING for _ in range(5))
    vendor.finish("never")
    assert client.query(job).status is TaskStatus.SUCCEEDED


def test_a_job_may_take_its_time(client: Client, vendor: LocalVendor) -> None:
    """A job that takes seconds is live for so long, whether it is queried or not."""
    job = client.submit(polls=0, seconds=60)
    assert client.query(job).status is TaskStatus.RUNNING
    assert vendor.live("token-1") == 1
    client.submit("key-2", polls=0, seconds=0.0)
    assert vendor.live("token-1") == 1


def test_a_lost_job_is_not_found(client: Client, vendor: LocalVendor) -> None:
    """A vendor that was restarted may know nothing any more."""
    job = client.submit()
    vendor.forget()
    assert isinstance(error_of(client.query, job), JobNotFoundError)


# Keys.


def test_a_repeated_key_is_the_same_job(client: Client, vendor: LocalVendor) -> None:
    """A vendor that honours keys makes a resubmit harmless."""
    assert client.submit() == client.submit()
    assert vendor.created == {"a": 1}
    assert [call.created for call in vendor.calls] == [True, False]
    vendor.honours_key = False
    assert client.submit().external_task_id == "job-2"
    assert vendor.created == {"a": 2}


def test_a_plain_handler_sends_no_key(vendor: LocalVendor, transport: RequestsTransport) -> None:
    """Nobody can recognise its repeats."""
    client = Client(PlainVendorHandler(vendor.url), transport)
    assert client.submit() != client.submit()
    assert [(call.key, call.token) for call in vendor.calls] == [(None, None)] * 2
    assert not client.handler.has_cancel


def test_a_job_is_looked_up_by_its_key(vendor: LocalVendor, transport: RequestsTransport) -> None:
    """A lost reply is found again without a second job."""
    handler = LookupVendorHandler(vendor.url)
    client = Client(handler, transport)
    assert handler.lookup(JobRequest("a"), client.submit_context("key-1")).query_params is None
    assert isinstance(error_of(client.submit, on_submit=["reset"]), MaybeSentError)
    found = handler.lookup(JobRequest("a"), client.submit_context("key-1"))
    assert found.query_params == QueryParams("job-1")
    assert vendor.count("lookup") == 2


# Cancels.


@pytest.mark.parametrize(
    ("cancel", "after"),
    [("done", TaskStatus.CANCELED), ("accepted", TaskStatus.CANCELED), ("refused", TaskStatus.RUNNING)],
)
def test_a_cancel_is_done_accepted_or_refused(client: Client, cancel: str, after: TaskStatus) -> None:
    """Vendors differ in what a cancel does, and all three must be tried out."""
    job = client.submit(polls=5, cancel=cancel)
    assert client.cancel(job) == cancel
    assert client.query(job).status is after


def test_a_finished_job_refuses_its_cancel(client: Client, vendor: LocalVendor) -> None:
    """The success was first."""
    job = client.submit(polls=0)
    client.query(job)
    assert client.cancel(job) == "refused"
    vendor.forget()
    assert isinstance(error_of(client.cancel, job), JobNotFoundError)


# Limits and credentials.


def test_too_many_live_jobs_are_refused_per_credentials(
    vendor: LocalVendor, transport: RequestsTransport
) -> None:
    """The limit counts jobs that have not ended, for each key by itself."""
    vendor.live_limit = 1
    one = Client(VendorHandler(vendor.url, signs=True), transport)
    two = Client(VendorHandler(vendor.url, signs=True), transport, token="token-2")
    job = one.submit("key-1", polls=1)
    assert isinstance(error_of(one.submit, "key-2"), ThrottledError)
    assert two.submit("key-3").external_task_id == "job-2"
    assert one.query(job).status is TaskStatus.RUNNING
    assert one.query(job).status is TaskStatus.SUCCEEDED
    assert one.submit("key-2").external_task_id == "job-3"


def test_unknown_credentials_are_refused(vendor: LocalVendor, transport: RequestsTransport) -> None:
    """A vendor answers 401, and quotes the key as vendors do; the error hides it."""
    vendor.tokens = frozenset({"token-1"})
    Client(VendorHandler(vendor.url, signs=True), transport).submit()
    error = error_of(Client(VendorHandler(vendor.url, signs=True), transport, token="token-2").submit)
    assert isinstance(error, RejectedError)
    assert error.code == "account_refused"
    assert "token-2" not in str(error)


# Faults.


@pytest.mark.parametrize(
    ("fault", "expected", "created"),
    [
        ("400", RejectedError, 0),
        ("401", RejectedError, 0),
        ("429", ThrottledError, 0),
        ("503:2", ThrottledError, 0),
        ("500", VendorError, 0),
        ("500!", VendorError, 1),
        ("302", VendorError, 0),
        ("reset", MaybeSentError, 1),
        ("reset!", MaybeSentError, 0),
        ("truncate", MaybeSentError, 1),
        ("hang", MaybeSentError, 1),
        ("html", VendorError, 1),
        ("garbage", VendorError, 1),
        ("empty", VendorError, 1),
    ],
)
def test_a_fault_of_a_submit(
    vendor: LocalVendor, transport: RequestsTransport, fault: str, expected: type[Exception], created: int
) -> None:
    """Each fault says by itself whether there is a job; the handler sees only the fault."""
    client = Client(VendorHandler(vendor.url, call_limit=timedelta(seconds=0.4)), transport)
    error = error_of(client.submit, on_submit=[fault])
    assert type(error) is expected
    assert sum(vendor.created.values()) == created
    if fault == "503:2":
        assert isinstance(error, ThrottledError)
        assert error.delay == timedelta(seconds=2)
    assert client.submit(on_submit=[fault]).external_task_id == "job-1"


def test_each_call_of_a_job_takes_the_next_fault(client: Client, vendor: LocalVendor) -> None:
    """A list of faults is used up in order, and a faulty query does not move the job."""
    job = client.submit(polls=0, on_query=["500", "ok", "404"], on_cancel=["429"])
    assert isinstance(error_of(client.query, job), VendorError)
    assert client.query(job).status is TaskStatus.SUCCEEDED
    assert isinstance(error_of(client.query, job), JobNotFoundError)
    assert client.query(job).status is TaskStatus.SUCCEEDED
    assert isinstance(error_of(client.cancel, job), ThrottledError)
    assert [call.fault for call in vendor.calls] == ["ok", "500", "ok", "404", "ok", "429"]


def test_the_next_calls_of_a_kind_can_be_spoilt(client: Client, vendor: LocalVendor) -> None:
    """A test that has no job yet scripts the vendor instead."""
    vendor.fault("submit", "reset!", "slow:0.01")
    assert isinstance(error_of(client.submit), MaybeSentError)
    job = client.submit()
    vendor.fault("query", "drop")
    assert client.query(job).status is TaskStatus.RUNNING
    deadline = time.monotonic() + 5
    while vendor._server.connections and time.monotonic() < deadline:
        time.sleep(0.005)  # a call that meets the closing connection may be lost, as in life
    assert client.query(job).status is TaskStatus.SUCCEEDED


def test_the_default_script_is_for_jobs_that_say_nothing(client: Client, vendor: LocalVendor) -> None:
    """A job's own script changes single values of it."""
    vendor.script = Script(polls=0, end="failed")
    assert client.query(client.submit("key-1")).status is TaskStatus.FAILED
    assert client.query(client.submit("key-2", end="succeeded")).status is TaskStatus.SUCCEEDED


def test_latency_delays_every_answer(client: Client, vendor: LocalVendor) -> None:
    """Calls wait at the vendor, not in its thread: others are served meanwhile."""
    began = datetime.now(UTC)
    client.submit(latency=0.1)
    assert datetime.now(UTC) - began >= timedelta(seconds=0.1)


@pytest.mark.parametrize(
    "script", [{"on_submit": ["explode"]}, {"on_query": ["999"]}, {"end": "finished"}, {"cancel": "maybe"}]
)
def test_a_script_that_means_nothing_is_refused(script: dict[str, Any], client: Client) -> None:
    """A misspelt fault would make a test that proves nothing."""
    with pytest.raises(ValidationError, match="must be"):
        JobRequest.of("a", **script)
    error = error_of(client.handler.submit, JobRequest("a", script=script), client.submit_context("k"))
    assert isinstance(error, RejectedError)


def test_a_misspelt_name_gets_a_suggestion(vendor: LocalVendor) -> None:
    """The kit's own names are refused like everybody's."""
    with pytest.raises(UnknownNameError, match="did you mean 'polls'"):
        JobRequest.of("a", pols=3)
    with pytest.raises(UnknownNameError, match="did you mean 'query'"):
        vendor.fault("quary", "500")
    with pytest.raises(UnknownNameError, match="did you mean 'submit'"):
        vendor.count("submits")


def test_an_unknown_address_is_not_counted(vendor: LocalVendor, transport: RequestsTransport) -> None:
    """A handler with a wrong path is told apart from a lost job."""
    client = Client(VendorHandler(vendor.url + "/v2"), transport)
    assert isinstance(error_of(client.submit), RejectedError)
    assert vendor.calls == []


# Without a socket, as a process, and in a log.


def test_a_vendor_can_be_called_without_a_socket() -> None:
    """Benchmarks and quick tests need the vendor, not the network."""
    vendor = Vendor()
    transport = ScriptedTransport(answered_by(vendor))
    client = Client(VendorHandler("http://vendor.test/", signs=True), transport)
    job = client.submit("key-1", polls=0, on_query=["500", "reset"])
    assert isinstance(error_of(client.query, job), VendorError)
    assert isinstance(error_of(client.query, job), MaybeSentError)
    assert client.query(job).status is TaskStatus.SUCCEEDED
    assert len(transport.calls) == 4
    assert vendor.calls[0].token == "token-1"


def test_a_scripted_transport_has_an_end() -> None:
    """One call more than a test expected is its failure, not an endless supply."""
    transport = ScriptedTransport([NotSentError("no route")])
    client = Client(VendorHandler("http://vendor.test"), transport)
    assert isinstance(error_of(client.submit), NotSentError)
    with pytest.raises(AssertionError, match="expected no further call"):
        client.query(QueryParams("job-1"))


def test_each_call_is_in_the_log_before_it_is_answered(transport: RequestsTransport, tmp_path: Path) -> None:
    """Kill tests count jobs in the log of a vendor that may be gone."""
    log = tmp_path / "vendor.log"
    with LocalVendor(log=log) as vendor:
        client = Client(VendorHandler(vendor.url), transport)
        job = client.submit(on_submit=["ok"], on_query=["hang"])
        error_of(Client(VendorHandler(vendor.url, call_limit=timedelta(seconds=0.2)), transport).query, job)
        assert read_log(log) == vendor.calls
    assert [(call.call, call.key, call.job, call.text) for call in read_log(log)] == [
        ("submit", "key-1", "job-1", "a"),
        ("query", "key-1", "job-1", "a"),
    ]
    with LocalVendor(log=log, keep=False) as vendor:
        Client(VendorHandler(vendor.url), transport).submit()
        assert vendor.calls == []
    assert len(read_log(log)) == 3


def test_a_log_of_a_newer_vendor_can_be_read(tmp_path: Path) -> None:
    """Its further fields are left out."""
    log = tmp_path / "vendor.log"
    line = {"at": 1.5, "call": "query", "status": 200, "weather": "fine"}
    log.write_bytes(codec.dumps(line) + b"\n")
    (call,) = read_log(log)
    assert (call.at, call.call, call.status, call.fault) == (1.5, "query", 200, "ok")


def test_a_vendor_process_serves_and_ends(transport: RequestsTransport, tmp_path: Path) -> None:
    """It takes a script and options, and is gone after close, however often that is called."""
    with VendorProcess(
        tmp_path / "vendor.log", script={"end": "never"}, options=["--ignore-keys", "--live-limit", "2"]
    ) as vendor:
        client = Client(VendorHandler(vendor.url), transport)
        jobs = [client.submit(), client.submit()]
        assert isinstance(error_of(client.submit), ThrottledError)
        assert client.query(jobs[0]).status is TaskStatus.RUNNING
        assert vendor.created == {"a": 2}
        assert [call.call for call in vendor.calls] == ["submit", "submit", "submit", "query"]
    vendor.close()
    assert isinstance(error_of(client.submit), NotSentError)
    gc.collect()


def test_a_vendor_process_without_a_log_has_no_calls() -> None:
    """There is nothing to read them from."""
    with VendorProcess() as vendor:
        assert vendor.calls == []
        assert vendor.created == {}


def test_a_vendor_process_that_cannot_start_says_so() -> None:
    """A wrong option must not make the test wait for an address."""
    with pytest.raises(RuntimeError, match="the vendor did not start"):
        VendorProcess(options=["--no-such-option"])
    with pytest.raises(UnknownNameError):
        VendorProcess(script={"pols": 1})
    gc.collect()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_vendor_started_by_hand_ends_with_a_signal(stop: signal.Signals) -> None:
    """Somebody who tries it in a terminal stops it as usual."""
    with subprocess.Popen(
        [sys.executable, "-m", "coatcheck.testing.vendor", "--keep"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
        process.send_signal(stop)
        assert process.wait(timeout=10) == 0


def test_its_handlers_can_be_registered() -> None:
    """They are declared like anybody's, and differ in what they can do."""
    plain, keyed, looking = (
        resolve(handler("http://vendor.test")).handler
        for handler in (PlainVendorHandler, VendorHandler, LookupVendorHandler)
    )
    assert [handler.key for handler in (plain, keyed, looking)] == [
        "test:plain",
        "test:vendor",
        "test:lookup",
    ]
    assert (plain.resubmit, plain.has_cancel, plain.has_lookup) == ("never", False, False)
    assert (keyed.resubmit, keyed.has_cancel, keyed.has_lookup) == ("idempotent", True, False)
    assert (looking.resubmit, looking.has_cancel, looking.has_lookup) == ("never", True, True)
    named = VendorHandler("http://vendor.test", key="test:other", account="acme", poll=plain.poll)
    assert (named.key, named.account, VendorHandler.key) == ("test:other", "acme", "test:vendor")
    assert issubclass(HandlerError, CoatcheckError)
