"""Callbacks of vendors: what is read out of them, and what becomes of the tasks that they are about."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import attrs
import pytest
from tests.core.manager_house import House, Job, Outcome, Vendor, build

from coatcheck import codec
from coatcheck.accounts import Accounts
from coatcheck.errors import (
    CallbackRefusedError,
    HandlerError,
    MaybeSentError,
    TaskNotFoundError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import (
    BODY_CAP,
    Call,
    Callback,
    CallbackNote,
    Follow,
    HttpHandler,
    Reply,
    callback_url,
    check_callback_url,
)
from coatcheck.manager import Manager
from coatcheck.model import QueryContext, QueryParams, QueryResult, SubmitContext, SubmitResult, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.step import Steps
from coatcheck.store import Room
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.transport import ScriptedTransport, reply

SECRET = "signing-secret-of-a-test"
NEWS = b'{"id": "job-1", "status": "succeeded"}'


class Calling(Vendor):
    """A vendor whose callbacks carry the secret itself, for want of a signature."""

    poll = PollPolicy(first=timedelta(hours=1), start=timedelta(hours=1), cap=timedelta(hours=1), jitter=0)

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Verify and read."""
        callback.check_time("x-time")
        if callback.required("x-signature") != context.account.secret("signing"):
            raise CallbackRefusedError("expected another signature", code="bad_signature")
        return callback.note("id")


@pytest.fixture
def house() -> Iterator[House]:
    """Yield a manager whose handler reads callbacks and asks its vendor once an hour."""
    made = build_house(Calling())
    yield made
    made.store.close()


def build_house(vendor: Vendor) -> House:
    """Return a house whose account has a secret for signatures."""
    made = build(vendor)
    accounts = Accounts({"default": {"signing": lambda: SECRET}}, environ={})
    manager = Manager(made.store, made.registry, accounts=accounts)
    return attrs.evolve(made, manager=manager, accounts=accounts)


def headers(at: datetime, signature: str = SECRET) -> dict[str, str]:
    """Return the headers of a callback that is signed at a time."""
    return {"X-Time": f"{at.timestamp():.0f}", "X-Signature": signature}


def receive(house: House, task_id: str, body: bytes = NEWS, **options: Any) -> Any:
    """Hand a callback to the manager, a good one by default."""
    options = {"headers": headers(house.clock()), **options}
    return house.manager.receive_callback(task_id, body=body, **options)


def callback(body: bytes = b"{}", **options: Any) -> Callback:
    """Return a callback that arrived at the clock's first moment."""
    return Callback(body, received_at=FakeClock()(), **options)


# What the manager makes of a callback.


def test_callback_makes_the_task_due_and_its_query_is_the_evidence(house: House) -> None:
    """The next look is early, the vendor's answer to it ends the task, and there is one end (F74)."""
    task = house.submitted()
    assert task.due_at == house.clock() + timedelta(hours=1)
    hinted = receive(house, task.id)
    assert (hinted.status, hinted.due_at) == (TaskStatus.RUNNING, house.clock())
    house.work()
    done = house.manager.get(task.id)
    assert (done.status, done.result, done.query_count) == (TaskStatus.SUCCEEDED, Outcome("done"), 1)


def test_callback_that_claims_success_changes_nothing_while_the_vendor_says_running(house: House) -> None:
    """A callback is never more than a hint, signed or not (F74)."""
    house.vendor.query_answer = QueryResult.running(30)
    task = house.submitted()
    receive(house, task.id)
    house.work()
    after = house.manager.get(task.id)
    assert (after.status, after.progress, after.result) == (TaskStatus.RUNNING, 30, None)


def test_repeated_callbacks_are_harmless(house: House) -> None:
    """Vendors send them until somebody says 2xx: one look, one end, whatever comes afterwards."""
    task = house.submitted()
    for _ in range(3):
        receive(house, task.id)
    house.work()
    ended = house.manager.get(task.id)
    assert receive(house, task.id) == ended.evolve(result=None)
    house.work()
    assert house.manager.get(task.id) == ended
    assert len(house.vendor.queries) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"headers": {}}, "unsigned"),
        ({"headers": {"X-Time": "yesterday", "X-Signature": SECRET}}, "stale"),
        ({"signature": "forged-by-somebody"}, "bad_signature"),
        ({"apart": timedelta(minutes=6)}, "stale"),
        ({"apart": timedelta(minutes=-6)}, "stale"),
        ({"body": b"succeeded"}, "unreadable"),
        ({"body": b'{"id": 7}'}, "unreadable"),
        ({"body": b'{"id": " "}'}, "unreadable"),
        ({"body": b" " * (BODY_CAP + 1)}, "too_large"),
    ],
)
def test_refused_callback_changes_nothing(house: House, change: dict[str, Any], code: str) -> None:
    """Forged, stale or unreadable: a typed error with a code, and the task is as it was."""
    task = house.submitted()
    at = house.clock() - change.pop("apart", timedelta())
    sent = {"headers": headers(at, change.pop("signature", SECRET)), **change}
    with pytest.raises(CallbackRefusedError) as refused:
        receive(house, task.id, **sent)
    assert refused.value.code == code
    assert house.manager.get(task.id) == task


def test_callback_of_another_job_is_like_one_for_a_missing_task(house: House) -> None:
    """Whoever has a good callback of a job of theirs learns nothing about the tasks of others."""
    task = house.submitted(tenant="acme")
    answers = set()
    for task_id, body, tenant in (
        ("missing", NEWS, None),
        (task.id, b'{"id": "job-2"}', None),
        (task.id, NEWS, "other"),
    ):
        with pytest.raises(TaskNotFoundError) as problem:
            receive(house, task_id, body, tenant=tenant)
        answers.add(str(problem.value).replace(task_id, "ID"))
    assert len(answers) == 1
    assert house.manager.get(task.id) == task
    assert receive(house, task.id, tenant="acme").due_at == house.clock()


def test_callback_before_the_submit_is_stored_makes_the_first_query_early(house: House) -> None:
    """The vendor may be faster than our commit; its hint waits for the job's id (F72)."""
    task = house.manager.submit(Job())
    steps = Steps(house.registry, house.accounts)
    batch = house.store.claim(
        "worker-1",
        uuid4().hex,
        format=codec.FORMAT,
        handlers=["acme:job"],
        room=Room(total=1),
        lease=timedelta(seconds=30),
    )
    submitted = [steps.run(lease, batch.now) for lease in batch.leases]
    assert receive(house, task.id).status is TaskStatus.SUBMITTING
    house.store.commit(submitted)
    assert house.manager.get(task.id).due_at == house.clock()
    house.work()
    assert house.manager.get(task.id).status is TaskStatus.SUCCEEDED


def test_callback_never_hurries_a_submit(house: House) -> None:
    """A task that waits for its time has no job that anybody could tell about."""
    task = house.manager.submit(Job(), delay=timedelta(hours=1))
    assert receive(house, task.id) == task
    house.work()
    assert house.vendor.submits == []


def test_callback_for_an_unknown_submit_is_told_to_operators(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the job that nobody knew of; whether that is true only the vendor's own API says."""
    house.vendor.submit_answer = MaybeSentError("the reply was lost")
    task = house.submitted()
    with caplog.at_level(logging.WARNING, "coatcheck.manager"):
        assert receive(house, task.id).status is TaskStatus.SUBMIT_UNKNOWN
    assert "names job 'job-1'; look at the vendor, then resolve" in caplog.text
    assert house.manager.get(task.id) == task


def test_late_callback_of_an_earlier_generation_is_like_one_for_a_missing_task(house: House) -> None:
    """A retried task has another job; news of the old one says nothing about it."""
    house.vendor.query_answer = QueryResult.failed("bad_prompt", "no")
    task = house.submitted()
    receive(house, task.id)
    house.work()
    house.vendor.submit_answer = SubmitResult.running(QueryParams("job-2"))
    house.manager.retry(task.id)
    house.work()
    with pytest.raises(TaskNotFoundError):
        receive(house, task.id)
    assert house.manager.get(task.id).due_at == house.clock() + timedelta(hours=1)


def test_time_of_arrival_counts_for_callbacks_that_were_queued(house: House) -> None:
    """An application that works them off later says when they came."""
    task = house.submitted()
    arrived = house.clock()
    house.clock.advance(timedelta(minutes=30))
    with pytest.raises(CallbackRefusedError):
        receive(house, task.id, headers=headers(arrived))
    assert receive(house, task.id, headers=headers(arrived), received_at=arrived).due_at == house.clock()
    with pytest.raises(ValidationError, match="received_at"):
        receive(house, task.id, received_at=arrived.replace(tzinfo=None))


def test_parsed_body_is_refused_with_how_to_get_the_raw_one(house: House) -> None:
    """A signature is over bytes: what a framework has parsed and written again is something else."""
    task = house.submitted()
    for body in ({"id": "job-1"}, NEWS.decode()):
        with pytest.raises(ValidationError, match=r"raw bytes.*request\.get_data"):
            receive(house, task.id, body)  # type: ignore[arg-type]  # what people pass by mistake


def test_handler_without_read_callback_is_asked_as_always() -> None:
    """Its callbacks are refused with the reason, and its jobs are polled."""
    house = build()
    task = house.submitted()
    with pytest.raises(CallbackRefusedError, match="has no read_callback"):
        receive(house, task.id)
    assert not house.vendor.has_callback
    house.store.close()


def test_missing_signing_secret_is_a_wrong_setting() -> None:
    """It is ours to repair, so it is not told as a bad signature."""
    house = build(Calling())
    task = house.submitted()
    with pytest.raises(UnknownNameError, match="signing"):
        receive(house, task.id)
    house.store.close()


@pytest.mark.parametrize("reader", ["broken", "broken_async", "leaking", "wrong"])
def test_reader_that_fails_gives_a_typed_error_without_secrets(reader: str) -> None:
    """Whatever a reader does, the web application gets an error that it knows (G8)."""

    def broken(_: Callback, context: QueryContext) -> CallbackNote:
        raise KeyError(context.account.secret("signing"))

    async def broken_async(_: Callback, context: QueryContext) -> CallbackNote:
        raise ValueError(context.account.secret("signing"))

    def leaking(_: Callback, context: QueryContext) -> CallbackNote:
        raise CallbackRefusedError(f"not {context.account.secret('signing')}")

    def wrong(_: Callback, __: QueryContext) -> str:
        return "job-1"

    house = build_house(Vendor(read_callback=locals()[reader]))
    task = house.submitted()
    with pytest.raises(HandlerError) as problem:
        receive(house, task.id)
    assert isinstance(problem.value, CallbackRefusedError) == (reader != "wrong")
    texts = [str(problem.value), repr(problem.value.__cause__), repr(problem.value.__context__)]
    assert SECRET not in "".join(texts)
    assert house.manager.get(task.id) == task
    house.store.close()


def test_reader_may_be_async() -> None:
    """As every other method of a handler may be."""

    async def read(callback: Callback, _: QueryContext) -> CallbackNote:
        return callback.note("id")

    house = build_house(Vendor(read_callback=read))
    task = house.submitted()
    assert receive(house, task.id).due_at == house.clock()
    house.store.close()


class KeyedHandler(HttpHandler[Job]):
    """Fetches what it needs for a signature from its vendor."""

    key = "acme:keyed"
    base_url = "https://api.vendor.test"

    def sign(self, call: Call, account: Any) -> Call:
        """Sign calls to the vendor's own place."""
        return call.with_headers(Authorization=f"Bearer {account.secret('signing')}")

    def submit(self, params: Job, context: SubmitContext) -> SubmitResult:
        """Submit without a call."""
        return SubmitResult.running(QueryParams("job-1"))

    def submit_call(self, params: Job, context: SubmitContext) -> Call:
        """Never called, like the next three."""
        raise NotImplementedError

    def read_submit(self, reply: Reply, params: Job, context: SubmitContext) -> SubmitResult:
        """Never called."""
        raise NotImplementedError

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Never called."""
        raise NotImplementedError

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Never called."""
        raise NotImplementedError

    def read_callback(self, callback: Callback, context: QueryContext) -> Follow:
        """Ask the vendor for its keys first."""

        def read(reply: Reply) -> CallbackNote:
            if reply.json()["key"] != callback.required("x-signature"):
                raise CallbackRefusedError("expected another signature", code="bad_signature")
            return callback.note("id")

        return Follow(Call("GET", "https://keys.vendor.test/keys", plain=True), read)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply({"key": SECRET}), None),
        (reply({"key": "another"}), CallbackRefusedError),
        (reply({}), VendorError),
        (reply({"key": SECRET}, 503), HandlerError),
        (MaybeSentError("the connection was lost"), HandlerError),
    ],
)
def test_public_keys_are_fetched_without_credentials(answer: Any, problem: type[Exception] | None) -> None:
    """A failed fetch says nothing about the callback: the vendor may send it again."""
    transport = ScriptedTransport([answer])
    registry = Registry()
    registry.add_handler(KeyedHandler())
    store = SqliteStore(":memory:", clock=FakeClock())
    accounts = Accounts({"default": {"signing": lambda: SECRET}}, environ={})
    manager = Manager(store, registry, accounts=accounts, transport=transport)
    house = House(
        clock=FakeClock(), store=store, registry=registry, manager=manager, vendor=Vendor(), accounts=accounts
    )
    task = house.submitted()
    if problem is None:
        assert receive(house, task.id).status is TaskStatus.RUNNING
    else:
        with pytest.raises(problem) as caught:
            receive(house, task.id)
        assert isinstance(caught.value, CallbackRefusedError) == (problem is CallbackRefusedError)
    (call,) = transport.calls
    assert call.sign is None
    assert SECRET not in str((call.url, call.headers, call.query))
    store.close()


# What a callback is.


def test_callback_shows_nothing_of_what_it_holds() -> None:
    """It may stand in a log."""
    sent = callback(b"a secret body", headers={"X-Signature": "abc"}, query={"token": "def"})
    assert not any(text in repr(sent) for text in ("secret", "abc", "def"))
    assert (sent.header("x-SIGNATURE"), sent.header("other")) == ("abc", None)


@pytest.mark.parametrize(
    ("apart", "is_fresh"), [(299, True), (300, True), (301, False), (-300, True), (-301, False)]
)
def test_time_of_a_signature_may_be_off_by_five_minutes_to_either_side(*, apart: int, is_fresh: bool) -> None:
    """Compared with the time of arrival, which is given, and with no clock of this process."""
    text = f"{FakeClock()().timestamp() + apart:.0f}"
    sent = callback(headers={"x-time": text})
    if is_fresh:
        assert sent.check_time("X-Time") == text
    else:
        with pytest.raises(CallbackRefusedError, match="within 300 s"):
            sent.check_time("X-Time")


@pytest.mark.parametrize("text", ["-5", "1e9", "²", "1" * 30, "9" * 5000, "0x10", "", " "])
def test_time_that_is_no_time_is_stale_or_missing(text: str) -> None:
    """Nothing that somebody writes there is an exception of another kind."""
    with pytest.raises(CallbackRefusedError):
        callback(headers={"x-time": text}).check_time("x-time")


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b'{"data": []}', b'{"data": {"id": null}}'])
def test_body_without_an_id_is_unreadable(body: bytes) -> None:
    """An id is a text, and nothing is made into one."""
    with pytest.raises(CallbackRefusedError) as problem:
        callback(body).note("data", "id")
    assert problem.value.code == "unreadable"


# The addresses that vendors are asked to call.


def test_callback_url_carries_the_tasks_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request's own option wins over the handler's variable; without both there is none."""
    assert callback_url(None, "video:acme-2", "task 1") is None
    given = "https://app.example/cb/{task_id}?from=acme"
    assert callback_url(given, "video:acme-2", "task 1") == "https://app.example/cb/task%201?from=acme"
    monkeypatch.setenv("COATCHECK_VIDEO_ACME_2_CALLBACK_URL", "http://10.0.0.7:8000/{task_id}")
    assert callback_url(None, "video:acme-2", "task-1") == "http://10.0.0.7:8000/task-1"
    assert callback_url(given, "video:acme-2", "t") == "https://app.example/cb/t?from=acme"
    monkeypatch.setenv("COATCHECK_VIDEO_ACME_2_CALLBACK_URL", "app.example/{task_id}")
    with pytest.raises(ValidationError, match="COATCHECK_VIDEO_ACME_2_CALLBACK_URL must be a URL"):
        callback_url(None, "video:acme-2", "t")


@pytest.mark.parametrize(
    "url",
    [
        "app.example/{task_id}",
        "ftp://app.example/{task_id}",
        "https:///{task_id}",
        "https://user:word@app.example/{task_id}",
        "https://app.example/{id}",
        "https://app.example/{task_id}#part",
        "https://app.example/a b",
        "https://app.example:port/{task_id}",
        "",
        7,
        None,
    ],
)
def test_callback_url_that_cannot_be_called_is_refused(url: object) -> None:
    """Before anything is stored; nobody would hear of it later."""
    with pytest.raises(ValidationError, match=r"callback_url must be a URL like https://app\.example"):
        check_callback_url(url)
