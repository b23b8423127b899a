"""Handlers that break one rule each: the contract must catch them all, and nothing else."""

import hashlib
import hmac
import inspect
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import uuid4

import attrs
import pytest
from attrs import field, frozen

from coatcheck import codec
from coatcheck.errors import (
    CallbackRefusedError,
    HandlerError,
    MaybeSentError,
    NotSentError,
    RejectedError,
    ThrottledError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Callback, CallbackNote, Reply
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
from coatcheck.testing.handler_contract import HandlerContract, RecordedCallback, Recordings
from coatcheck.testing.transport import reply
from coatcheck.testing.vendor import JobRequest, JobResult, LookupVendorHandler

JOB = {"id": "job-7", "status": "queued"}
DONE = {"id": "job-7", "status": "succeeded", "output": {"text": "A"}, "usage": {"pages": 1}}
RECORDINGS: Recordings = {
    "accepted": reply(JOB, 201, headers={"X-Request-Id": "trace-1"}),
    "at_once": reply(DONE, 201),
    "running": reply({"id": "job-7", "status": "running", "progress": 40}),
    "unknown_word": reply({"id": "job-7", "status": "frobnicating"}),
    "moved": reply({"id": "job-7", "status": "running", "cursor": 3}),
    "succeeded": reply(DONE),
    "failed": reply({"id": "job-7", "status": "failed", "error": {"code": "bad", "message": "no text"}}),
    "cancel_done": reply({"cancel": "done"}),
    "cancel_accepted": reply({"cancel": "accepted"}),
    "cancel_refused": reply({"cancel": "refused"}),
    "found": reply({"jobs": [JOB]}),
    "not_found": reply({"jobs": []}),
}


MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)
SIGNING = "signing-secret-of-a-test"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return how this vendor signs its callbacks."""
    return hmac.new(secret.encode(), timestamp.encode() + body, hashlib.sha256).hexdigest()


TIMESTAMP = f"{MADE_AT.timestamp():.0f}"
NEWS = b'{"id": "job-7", "status": "succeeded"}'
CALLBACK = RecordedCallback(
    callback=Callback(
        NEWS,
        {
            "Content-Type": "application/json",
            "X-Signed-At": TIMESTAMP,
            "X-Signature": signature(SIGNING, TIMESTAMP, NEWS),
        },
        received_at=MADE_AT,
    ),
    external_task_id="job-7",
    secrets={"signing": SIGNING},
)


class Honest(LookupVendorHandler):
    """A correct handler with every capability, for the others to break."""

    resubmit = "idempotent"
    #: What the contract's fixtures give for it.
    params: ClassVar[Any] = JobRequest.of("a", polls=2)
    old_params: ClassVar[tuple[bytes, ...]] = (b'{"type":"test.job","version":1,"data":{"text":"a"}}',)
    old_query_params: ClassVar[tuple[QueryParams, ...]] = (QueryParams("job-7"),)

    def __init__(self) -> None:
        super().__init__("http://vendor.test", signs=True)

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read a query, with the cursor that this vendor may send."""
        job = reply.json()
        if "cursor" in job:
            moved = QueryParams(params.external_task_id, cursor=job["cursor"])
            return QueryResult.running(next_query_params=moved)
        return super().read_query(reply, params, context)

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Read a callback that this vendor signed."""
        expected = signature(
            context.account.secret("signing"), callback.check_time("x-signed-at"), callback.body
        )
        if not hmac.compare_digest(expected.encode(), callback.required("x-signature").encode()):
            raise CallbackRefusedError("expected a good signature, found another one")
        return callback.note("id")


class Nameless(Honest):
    """Has no usable key."""

    key = " "

    def __init__(self) -> None:
        super().__init__()
        self.key = " "


@codec.persistent("test.broken_lossy")
@frozen(eq=False)
class LossyRequest:
    """A request that is another one after each restore."""

    text: str
    script: dict[str, Any] = field(factory=dict, kw_only=True)


class Lossy(Honest):
    """Takes requests that do not survive the store."""

    params_type = LossyRequest
    params = LossyRequest("a")
    old_params = ()


@codec.persistent("test.broken_greedy")
@frozen
class GreedyRequest:
    """A request that makes a text of everything."""

    text: str = field(converter=str)
    script: dict[str, Any] = field(factory=dict, kw_only=True)


class Greedy(Honest):
    """Takes the text of a stream's repr for a document."""

    params_type = GreedyRequest
    params = GreedyRequest("a")
    old_params = ()


class Pretending(Honest):
    """Claims local files and refuses them."""

    local_files = True

    def validate(self, params: JobRequest) -> None:
        """Refuse all file URLs."""
        if params.text.startswith("file:"):
            raise ValidationError("give an https URL", "text")


class Forgetful(Honest):
    """Refuses what its first version accepted."""

    def validate(self, params: JobRequest) -> None:
        """Demand what was optional."""
        if not params.script:
            raise ValidationError("a script is needed", "script")


class Unstorable(Honest):
    """Keeps an object in its query params."""

    def read_submit(self, reply: Reply, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Remember when the job was made, as a datetime."""
        if reply.json()["status"] == "succeeded":
            return super().read_submit(reply, params, context)
        return SubmitResult.submitted(QueryParams(reply.json()["id"], made_at=MADE_AT))

    def read_lookup(self, reply: Reply, params: JobRequest, context: SubmitContext) -> LookupResult:
        """Remember it here too."""
        found = super().read_lookup(reply, params, context).query_params
        return LookupResult(found and QueryParams(found.external_task_id, made_at=MADE_AT))


class Deferring(Honest):
    """Asks again for what it has been told."""

    def read_submit(self, reply: Reply, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Read only the id."""
        return SubmitResult.submitted(QueryParams(reply.json()["id"]))


class Hopeful(Honest):
    """Takes a lost submit for one that was never sent."""

    def submit(self, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Turn one error into the other."""
        try:
            return super().submit(params, context)
        except MaybeSentError as error:
            raise NotSentError(error.message) from error


class Vague(Honest):
    """Knows that nothing was sent and does not say so."""

    def submit(self, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Turn one error into the other."""
        try:
            return super().submit(params, context)
        except NotSentError as error:
            raise HandlerError(error.message) from error


class Tracing(Honest):
    """Takes the trace header for the id of the job."""

    def read_submit(self, reply: Reply, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Never be without an id."""
        try:
            return super().read_submit(reply, params, context)
        except (VendorError, HandlerError, TypeError, KeyError):
            return SubmitResult.submitted(QueryParams(reply.header("x-request-id") or "unknown"))


class Judging(Honest):
    """Takes a reply that it cannot read for a refusal."""

    def submit(self, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Turn one error into the other."""
        try:
            return super().submit(params, context)
        except VendorError as error:
            raise RejectedError(error.message) from error


class Fresh(Honest):
    """Makes up a new key for every call."""

    def submit_call(self, params: JobRequest, context: SubmitContext) -> Call | SubmitResult:
        """Replace the key."""
        call = super().submit_call(params, context)
        assert isinstance(call, Call)
        return call.with_headers(Idempotency_Key=str(uuid4()))


class Stamping(Honest):
    """Sends the time along, so that a repeat is another request."""

    def submit_call(self, params: JobRequest, context: SubmitContext) -> Call | SubmitResult:
        """Add the time."""
        call = super().submit_call(params, context)
        assert isinstance(call, Call)
        return call.with_headers(X_Sent_At=context.now.isoformat())


class Hasty(Honest):
    """Ends a job when it has made some progress."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Believe the progress."""
        result = super().read_query(reply, params, context)
        return QueryResult.succeeded(JobResult("")) if (result.progress or 0) >= 40 else result


class Elimination(Honest):
    """Takes every word that it does not know for a success."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Look for the words of a running job only."""
        result = super().read_query(reply, params, context)
        is_known = result.provider_status in ("queued", "running", None)
        return result if is_known else QueryResult.succeeded(JobResult(""))


class Raw(Honest):
    """Returns the vendor's reply as the result."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Keep the whole reply."""
        result = super().read_query(reply, params, context)
        return QueryResult.succeeded(reply) if result.result is not None else result


class Silent(Honest):
    """Does not say why a job failed."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Drop the reason."""
        result = super().read_query(reply, params, context)
        return QueryResult.failed("", "") if result.error is not None else result


class Renaming(Honest):
    """Takes the cursor for a new id."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Move on to another job."""
        result = super().read_query(reply, params, context)
        if result.next_query_params is None:
            return result
        return QueryResult.running(next_query_params=QueryParams("job-8"))


class Counting(Honest):
    """Gives up on its own after some queries."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Count queries."""
        if context.query_count > 50:
            return QueryResult.failed("too_slow", "gave up")
        return super().read_query(reply, params, context)


class Soothing(Honest):
    """Takes every error of a query for a running job."""

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Swallow errors."""
        try:
            return super().query(params, context)
        except HandlerError:
            return QueryResult.running()


class Despairing(Honest):
    """Takes a reply that it cannot read for the end of the job."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Fail at once."""
        try:
            return super().read_query(reply, params, context)
        except (VendorError, TypeError, KeyError):
            return QueryResult.failed("bad_reply", "the vendor's reply makes no sense")


class Blind(Honest):
    """Looks at bodies and never at statuses."""

    def submit_call(self, params: JobRequest, context: SubmitContext) -> Call | SubmitResult:
        """Accept everything."""
        return blindly(super().submit_call(params, context))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call | QueryResult:
        """Accept everything."""
        return blindly(super().query_call(params, context))


def blindly(call: Any) -> Call:
    """Return a call whose reader sees every reply."""
    return Call(
        call.method,
        call.url,
        headers=call.headers,
        json=call.json,
        accept=tuple(range(300, 600)),
        timeout=call.timeout,
    )


class Deaf(Honest):
    """Takes a throttle for any other error."""

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Rename the error."""
        try:
            return super().query(params, context)
        except ThrottledError as error:
            raise VendorError(error.message) from error


class Modern(Honest):
    """Needs what its first version did not store."""

    def read_submit(self, reply: Reply, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Store a region."""
        result = super().read_submit(reply, params, context)
        if result.query_params is None:
            return result
        return SubmitResult.submitted(QueryParams(result.query_params.external_task_id, region="eu"))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call | QueryResult:
        """Ask in the region."""
        if params.get("cursor") is not None:
            return super().query_call(params, context)
        return Call("GET", f"/{params['region']}/jobs/{params.external_task_id}")

    def read_lookup(self, reply: Reply, params: JobRequest, context: SubmitContext) -> LookupResult:
        """Store the region here too."""
        found = super().read_lookup(reply, params, context).query_params
        return LookupResult(found and QueryParams(found.external_task_id, region="eu"))


class Boasting(Honest):
    """Calls every cancel a success."""

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Believe in it."""
        return CancelResult.done()


class Careless(Honest):
    """Takes a lookup that failed for one that found nothing."""

    def lookup(self, params: JobRequest, context: SubmitContext) -> LookupResult:
        """Swallow errors."""
        try:
            return super().lookup(params, context)
        except HandlerError:
            return LookupResult.not_found()


class Sleepy(Honest):
    """Waits before it asks."""

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Sleep a little."""
        time.sleep(0.0)
        return super().query(params, context)


class Stubborn(Honest):
    """Asks twice to be sure."""

    def submit(self, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Send it again when the reply was lost."""
        try:
            return super().submit(params, context)
        except MaybeSentError:
            return super().submit(params, context)


class Scribbling(Honest):
    """Writes into the request."""

    def submit_call(self, params: JobRequest, context: SubmitContext) -> Call | SubmitResult:
        """Leave a note."""
        params.script.setdefault("queued", 0)
        return super().submit_call(params, context)


class Leaking(Honest):
    """Stores the secret beside the id."""

    def read_submit(self, reply: Reply, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Keep the secret for later."""
        result = super().read_submit(reply, params, context)
        if result.query_params is None:
            return result
        return SubmitResult.submitted(
            QueryParams(result.query_params.external_task_id, key=context.account.secret())
        )

    def read_lookup(self, reply: Reply, params: JobRequest, context: SubmitContext) -> LookupResult:
        """Keep it here too."""
        found = super().read_lookup(reply, params, context).query_params
        return LookupResult(found and QueryParams(found.external_task_id, key=context.account.secret()))


class Showing(Honest):
    """Shows the secret in its repr, once it knows it."""

    seen = ""

    def sign(self, call: Call, account: Account) -> Call:
        """Remember the secret."""
        self.seen = account.secret()
        return super().sign(call, account)

    def __repr__(self) -> str:
        return f"<Showing {self.seen}>"


class Spelling(Honest):
    """Finds headers only as this vendor spells them."""

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Look a header up by hand."""
        assert callback.headers["X-Signature"]
        return super().read_callback(callback, context)


class Trusting(Honest):
    """Takes every callback for the vendor's."""

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Check the time alone, which anybody can write."""
        callback.check_time("x-signed-at")
        return callback.note("id")


class Remembering(Honest):
    """Takes a callback for good at any time."""

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Check the signature as of the moment that it names itself."""
        signed_at = datetime.fromtimestamp(int(callback.required("x-signed-at")), UTC)
        return super().read_callback(
            Callback(callback.body, callback.headers, received_at=signed_at), context
        )


class Guessing(Honest):
    """Makes something of whatever arrives."""

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Take an unreadable callback for news of the one job that there is."""
        try:
            callback.json()
        except CallbackRefusedError:
            return CallbackNote("job-7")
        return super().read_callback(callback, context)


def rules() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the rules as pytest would find them."""
    return (
        (name, rule)
        for name, rule in inspect.getmembers(HandlerContract, inspect.isfunction)
        if name.startswith("test_") and "handler" in inspect.signature(rule).parameters
    )


def broken_rules(handler_type: type[Honest]) -> set[str]:
    """Return the names of the contract's rules that a new handler fails, each with a fresh one."""
    return {name for name, rule in rules() if fails(rule, handler_type())}


def fails(rule: Callable[..., None], handler: Honest) -> bool:
    """Return whether a rule goes red for a handler."""
    fixtures = {
        "handler": handler,
        "params": codec.decode_value(codec.encode_value(handler.params, field="params", cap=10_000)),
        "recordings": RECORDINGS,
        "old_params": handler.old_params,
        "old_query_params": handler.old_query_params,
        "callback": CALLBACK,
    }
    given = {name: fixtures[name] for name in inspect.signature(rule).parameters if name != "self"}
    try:
        rule(HandlerContract(), **given)
    except pytest.skip.Exception:
        return False
    except (Exception, pytest.fail.Exception):  # noqa: BLE001  # any exception turns a test red
        return True
    return False


DECLARATION = "test_the_declaration_is_complete"
SURVIVES = "test_a_request_survives_the_store"
LOCAL = "test_a_local_file_stream_or_binary_is_refused_before_the_store"
FILE_URL = "test_a_local_file_url_is_for_handlers_of_local_files"
OLD_REQUESTS = "test_old_requests_still_load"
ID = "test_a_submit_returns_an_id_that_can_be_stored"
AT_ONCE = "test_a_job_that_is_done_at_once_ends_with_the_submit"
LOST_SUBMIT = "test_a_lost_submit_is_unknown"
NOT_SENT = "test_a_submit_that_did_not_leave_says_so"
UNREADABLE_SUBMIT = "test_an_unreadable_reply_to_a_submit_is_unknown"
SAME_CALL = "test_a_repeated_submit_is_the_same_call_with_our_key"
STILL_RUNNING = "test_a_running_job_is_still_running"
UNKNOWN_WORD = "test_an_unknown_word_is_still_running"
SUCCESS = "test_a_success_has_a_result_that_can_be_stored"
FAILURE = "test_a_failure_says_what_failed"
CURSOR = "test_a_moved_cursor_is_kept_and_the_id_stays"
SAME_END = "test_an_end_is_the_same_whenever_it_is_seen"
LOST_QUERY = "test_a_lost_query_is_an_error"
UNREADABLE_QUERY = "test_an_unreadable_reply_to_a_query_is_an_error"
EVIDENCE = "test_only_a_2xx_reply_is_evidence"
THROTTLE = "test_a_throttle_gets_through_with_its_delay"
OLD_QUERIES = "test_old_query_params_still_work"
CANCEL = "test_the_answers_to_a_cancel_are_told_apart"
LOOKUP = "test_a_lookup_finds_the_job_or_says_that_there_is_none"
NAMES_JOB = "test_a_callback_names_its_job"
CHANGED = "test_a_changed_callback_is_refused"
STALE = "test_a_stale_callback_is_refused"
UNREADABLE_CALLBACK = "test_an_unreadable_callback_is_refused"
MANNERS = "test_a_step_neither_waits_nor_repeats_its_call"
UNCHANGED = "test_a_step_changes_nothing_that_it_was_given"
SECRETS = "test_secrets_stay_between_us_and_the_vendor"

BROKEN: dict[type[Honest], set[str]] = {
    Nameless: {DECLARATION, OLD_REQUESTS},
    Lossy: {SURVIVES},
    Greedy: {LOCAL},
    Pretending: {FILE_URL},
    Forgetful: {OLD_REQUESTS},
    Unstorable: {ID},
    Deferring: {AT_ONCE},
    Hopeful: {LOST_SUBMIT},
    Stubborn: {LOST_SUBMIT},
    Vague: {NOT_SENT},
    Tracing: {UNREADABLE_SUBMIT},
    Judging: {UNREADABLE_SUBMIT, EVIDENCE},
    Fresh: {SAME_CALL},
    Stamping: {SAME_CALL},
    Hasty: {STILL_RUNNING, CURSOR, OLD_QUERIES},
    Elimination: {UNKNOWN_WORD},
    Raw: {SUCCESS},
    Silent: {FAILURE},
    Renaming: {CURSOR},
    Counting: {SAME_END},
    Soothing: {LOST_QUERY, UNREADABLE_QUERY, EVIDENCE, THROTTLE},
    Despairing: {UNREADABLE_QUERY},
    Blind: {EVIDENCE, THROTTLE},
    Deaf: {THROTTLE},
    Modern: {OLD_QUERIES},
    Boasting: {CANCEL},
    Careless: {LOOKUP},
    Spelling: {NAMES_JOB},
    Trusting: {CHANGED},
    Remembering: {STALE},
    Guessing: {UNREADABLE_CALLBACK},
    Sleepy: {MANNERS},
    Scribbling: {UNCHANGED},
    Leaking: {SECRETS},
    Showing: {SECRETS},
}


def test_the_contract_accepts_a_correct_handler() -> None:
    """A contract that is always red would catch everything and prove nothing."""
    assert broken_rules(Honest) == set()


@pytest.mark.parametrize("handler_type", BROKEN)
def test_the_contract_catches_a_broken_handler(handler_type: type[Honest]) -> None:
    """Each broken handler fails the rules that it breaks, and no others."""
    assert broken_rules(handler_type) == BROKEN[handler_type]


def test_every_rule_of_the_contract_is_broken_by_somebody() -> None:
    """A rule that no broken handler tests may be checking nothing."""
    assert {name for name, _ in rules()} == set[str]().union(*BROKEN.values())


def test_a_required_recording_that_is_missing_is_a_failure() -> None:
    """Leaving a situation out must not be the way around its rules; an optional one is skipped, visibly."""
    handler = Honest()
    without = {name: recorded for name, recorded in RECORDINGS.items() if name not in ("running", "moved")}
    with pytest.raises(pytest.fail.Exception, match="'running'"):
        HandlerContract().test_a_running_job_is_still_running(handler, handler.params, without)
    with pytest.raises(pytest.skip.Exception, match="'moved'"):
        HandlerContract().test_a_moved_cursor_is_kept_and_the_id_stays(handler, handler.params, without)
    no_cancel = {name: recorded for name, recorded in RECORDINGS.items() if not name.startswith("cancel")}
    with pytest.raises(AssertionError, match="record at least one"):
        HandlerContract().test_the_answers_to_a_cancel_are_told_apart(handler, handler.params, no_cancel)


def test_a_handler_that_reads_callbacks_must_record_one() -> None:
    """Leaving the fixture out must not be the way around these rules; unsigned ones skip two, visibly."""
    with pytest.raises(AssertionError, match="a fixture named callback"):
        HandlerContract().test_a_callback_names_its_job(Honest(), None)
    unsigned = attrs.evolve(CALLBACK, is_signed=False)
    with pytest.raises(pytest.skip.Exception, match="does not sign"):
        HandlerContract().test_a_stale_callback_is_refused(Honest(), unsigned)
