"""The contract that every handler keeps, as pytest rules over recorded replies.

Subclass ``HandlerContract`` and give three fixtures: ``handler``, ``params`` and ``recordings``. Here are
    only rules that hold for any vendor; what the words of a particular one mean belongs into its own tests.
    Nothing here opens a socket.
"""

import asyncio
import inspect
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import attrs
import pytest
from attrs import frozen

from coatcheck import codec
from coatcheck.errors import (
    CallbackRefusedError,
    CoatcheckError,
    HandlerError,
    MaybeSentError,
    NotSentError,
    RejectedError,
    RequestError,
    ThrottledError,
)
from coatcheck.handler import AnyHandler, resolve
from coatcheck.http import FOLLOWS, Call, Callback, CallbackNote, HttpHandler, Reply, callback_steps, run
from coatcheck.model import (
    EMPTY,
    Account,
    CancelResult,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.testing.guard import Contract
from coatcheck.testing.transport import Outcome, ScriptedTransport, reply

#: How one situation is brought about: the reply (or what the transport raises) to each call in turn; or, for
#: a handler that does not talk HTTP, a function that sets its vendor up and returns the params for a query.
Recording = Reply | Sequence[Outcome] | Callable[[], QueryParams | None]
Recordings = Mapping[str, Recording]


@frozen(kw_only=True)
class RecordedCallback:
    """One callback of the vendor's, for the rules of a handler with ``read_callback``.

    Args:
        callback: what arrived, with a signature that is good at its ``received_at``.
        external_task_id: the job that it is about.
        is_signed: whether the vendor signs; where it does not, less can be refused.
        secrets: parts of the account that the signature is made with.
        replies: to the calls that fetch public keys.
    """

    callback: Callback
    external_task_id: str
    is_signed: bool = True
    secrets: Mapping[str, str] = EMPTY
    replies: Sequence[Outcome] = ()


REQUIRED = ("accepted", "running", "succeeded", "failed")
CANCELS = ("cancel_done", "cancel_accepted", "cancel_refused")

_SECRET = "contract-secret-5f3a9c"  # noqa: S105  # the one that must not be seen anywhere
_KEY = "contract-key-1"
_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
#: What tells the life cycle that no job exists or that a submit may be sent again.
_CERTAIN = (NotSentError, RejectedError, ThrottledError)
_UNREADABLE = (
    b"",
    b"<html><body>502 Bad Gateway: the job has succeeded</body></html>",
    b"succeeded",
    b'{"id": "job-',
    b"\x1f\x8b\x08\x00\x00",
)
_EMPTY = (b"{}", b"[]", b"null", b'""', b"0")


class HandlerContract(Contract):
    """Rules for a handler; the subclass gives ``handler``, ``params`` and ``recordings``.

    ``recordings`` maps situations to replies with invented values. Every handler has "accepted" (a submit
    that made a job) and "running", "succeeded" and "failed" (queries). Where the vendor has it: "at_once" (a
    submit that is done already), "moved" (a query that changes what the next one needs), "unknown_word" (a
    query with a status that the handler does not know), "cancel_done", "cancel_accepted", "cancel_refused",
    "found" and "not_found" (lookups). A step of several calls gets a sequence. A rule without its recording
    is skipped, visibly.

    Two more fixtures hold what released versions stored: ``old_params`` and ``old_query_params``. A handler
    with ``read_callback`` has one more: ``callback``.
    """

    @pytest.fixture
    def handler(self) -> AnyHandler:
        """Return the handler under test."""
        raise NotImplementedError("give the contract a fixture named handler that returns your handler")

    @pytest.fixture
    def params(self) -> Any:
        """Return a request that the handler accepts."""
        raise NotImplementedError("give the contract a fixture named params that returns a request")

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the recorded replies by situation."""
        raise NotImplementedError(
            f"give the contract a fixture named recordings with replies for {', '.join(REQUIRED)}"
        )

    @pytest.fixture
    def old_params(self) -> Iterable[bytes]:
        """Return requests as released versions stored them."""
        return ()

    @pytest.fixture
    def old_query_params(self) -> Iterable[QueryParams]:
        """Return query params as released versions stored them."""
        return ()

    @pytest.fixture
    def callback(self) -> RecordedCallback | None:
        """Return a callback of the vendor's; needed by a handler that reads them."""
        return None

    # Requests.

    def test_the_declaration_is_complete(self, handler: AnyHandler, params: Any) -> None:
        """A worker can register the handler, and its requests are of the registered type."""
        resolved = resolve(handler)
        codec.check_type(resolved.params_type)
        assert type(params) is resolved.params_type
        handler.validate(params)

    def test_a_request_survives_the_store(self, handler: AnyHandler, params: Any) -> None:
        """What a worker on another machine reads is what was submitted."""
        codec.check_request(params, local_files=handler.local_files)
        stored = codec.encode_value(params, field="params", cap=codec.CAPS["params"])
        assert codec.decode_value(stored) == params

    def test_a_local_file_stream_or_binary_is_refused_before_the_store(
        self, handler: AnyHandler, params: Any
    ) -> None:
        """Nothing that only this machine has enters a task, in whatever field it is passed."""
        with _local_things() as things:
            for name in _field_names(params):
                for thing in things:
                    problem = _refusal(handler, params, name, thing)
                    assert problem is not None, (
                        f"{name}={thing!r} was accepted: another machine cannot read it"
                    )

    def test_a_local_file_url_is_for_handlers_of_local_files(self, handler: AnyHandler, params: Any) -> None:
        """``file://`` is refused, except by a handler with ``local_files``, and there it must be readable."""
        texts = [name for name in _field_names(params) if isinstance(getattr(params, name), str)]
        with tempfile.NamedTemporaryFile() as file:
            readable = Path(file.name).as_uri()
            missing = Path(file.name + "-missing").as_uri()
            taken = [name for name in texts if _refusal(handler, params, name, readable) is None]
            wrong = [name for name in texts if _refusal(handler, params, name, missing) is None]
        assert not wrong, f"{', '.join(wrong)}: the URL of a file that cannot be read was accepted"
        assert bool(taken) == (handler.local_files and bool(texts)), f"accepted file:// in {taken}"

    def test_old_requests_still_load(self, handler: AnyHandler, old_params: Iterable[bytes]) -> None:
        """Whatever a released version stored is read by this one (G7)."""
        stored = list(old_params)
        if not stored:
            pytest.skip("old_params gives no request of a released version")
        for data in stored:
            loaded = codec.decode_value(data)
            assert type(loaded) is resolve(handler).params_type
            handler.validate(loaded)

    # Submits.

    def test_a_submit_returns_an_id_that_can_be_stored(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """An accepted submit says which job it made, and all that a later query needs."""
        result = self._submit(handler, params, self._stage(recordings, "accepted"))
        assert result.status in (TaskStatus.SUBMITTED, TaskStatus.RUNNING)
        assert result.query_params is not None
        assert result.query_params.external_task_id.strip()
        codec.check_plain(
            dict(result.query_params.provider_params), name="query_params", cap=codec.CAPS["query_params"]
        )

    def test_a_job_that_is_done_at_once_ends_with_the_submit(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A first answer that is final is not asked for again."""
        result = self._submit(handler, params, self._stage(recordings, "at_once"))
        assert result.status is TaskStatus.SUCCEEDED
        _check_result(result.result)

    def test_a_lost_submit_is_unknown(self, handler: AnyHandler, params: Any, recordings: Recordings) -> None:
        """After a network error nobody knows whether there is a job, and the handler must not claim to."""
        lost = MaybeSentError("the connection was lost")
        transport = self._stage(recordings, "submit_lost", lambda: _last(recordings, "accepted", lost))
        problem = _problem(self._submit, handler, params, transport)
        assert not isinstance(problem, _CERTAIN), (
            f"expected that the outcome stays unknown, found {problem!r}"
        )
        self._check_calls(transport, _length(recordings, "accepted"))

    def test_a_submit_that_did_not_leave_says_so(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A submit that certainly was not sent may be tried again, so the news must get through."""
        unsent = NotSentError("the name does not resolve")
        transport = self._stage(recordings, "submit_not_sent", lambda: _last(recordings, "accepted", unsent))
        problem = _problem(self._submit, handler, params, transport)
        assert isinstance(problem, NotSentError), f"expected NotSentError, found {problem!r}"

    def test_an_unreadable_reply_to_a_submit_is_unknown(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """2xx without a usable body or id: a job may exist, under an id that we do not know."""
        accepted = self._http_recording(handler, recordings, "accepted")
        for body in (*_UNREADABLE, *_EMPTY, _half(accepted)):
            transport = _script(recordings, "accepted", Reply(200, body))
            problem = _problem(self._submit, handler, params, transport)
            assert isinstance(problem, CoatcheckError), (
                f"{body!r}: expected a HandlerError, found {problem!r}"
            )
            assert not isinstance(problem, _CERTAIN), (
                f"{body!r}: expected an unknown outcome, found {problem!r}"
            )

    def test_a_repeated_submit_is_the_same_call_with_our_key(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A vendor can only recognise a repeat, or find a job, by the key that the first submit carried."""
        if handler.resubmit != "idempotent" and not handler.has_lookup:
            pytest.skip('resubmit is "never" and there is no lookup: no key is needed')
        self._http_recording(handler, recordings, "accepted")
        first, second = (self._stage(recordings, "accepted") for _ in range(2))
        self._submit(handler, params, first)
        self._submit(handler, params, second, now=_NOW + timedelta(minutes=5))
        assert _shown(first.calls[-1]) == _shown(second.calls[-1])
        assert _KEY in _shown(first.calls[-1]), "the idempotency key is not in the submit"

    # Queries.

    def test_a_running_job_is_still_running(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A job that has not ended is neither a success nor a failure."""
        result = self._query(handler, params, recordings, "running")
        assert result.status in (TaskStatus.SUBMITTED, TaskStatus.RUNNING)
        assert result.error is None

    def test_an_unknown_word_is_still_running(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """Vendors invent statuses; one that nobody knows must not end a job, and is kept to be read."""
        result = self._query(handler, params, recordings, "unknown_word")
        assert result.status in (TaskStatus.SUBMITTED, TaskStatus.RUNNING)
        assert result.provider_status, "the vendor's word is not kept in provider_status"

    def test_a_success_has_a_result_that_can_be_stored(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """The vendor's success is mapped to a result of a registered type."""
        result = self._query(handler, params, recordings, "succeeded")
        assert result.status is TaskStatus.SUCCEEDED
        _check_result(result.result)

    def test_a_failure_says_what_failed(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """The vendor's failure is mapped to a code and a message."""
        result = self._query(handler, params, recordings, "failed")
        assert result.status is TaskStatus.FAILED
        assert result.error is not None
        assert result.error.code.strip()
        assert result.error.message.strip()

    def test_a_moved_cursor_is_kept_and_the_id_stays(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """What the next query needs replaces the provider params whole; the job stays the same one."""
        moved = self._query(handler, params, recordings, "moved")
        assert moved.next_query_params is not None
        before = self._query_params(handler, params, recordings, "moved")
        assert moved.next_query_params.external_task_id == before.external_task_id
        assert moved.next_query_params != before
        after = self._ask(handler, self._stage(recordings, "running"), moved.next_query_params)
        assert after.status in (TaskStatus.SUBMITTED, TaskStatus.RUNNING)

    def test_an_end_is_the_same_whenever_it_is_seen(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """The same reply means the same, at the first query and at the hundredth after errors."""
        for situation in ("running", "succeeded", "failed"):
            first = self._query(handler, params, recordings, situation)
            later = self._query(
                handler,
                params,
                recordings,
                situation,
                query_count=100,
                consecutive_errors=7,
                now=_NOW + timedelta(hours=5),
            )
            assert first == later

    def test_a_lost_query_is_an_error(self, handler: AnyHandler, params: Any, recordings: Recordings) -> None:
        """A network error is raised, so that the policy retries it; it says nothing about the job."""
        lost = MaybeSentError("the connection was lost")
        query_params = self._query_params(handler, params, recordings, "running")
        transport = self._stage(recordings, "query_lost", lambda: _last(recordings, "running", lost))
        problem = _problem(self._ask, handler, transport, query_params)
        assert isinstance(problem, HandlerError), f"expected a HandlerError, found {problem!r}"
        self._check_calls(transport, _length(recordings, "running"))

    def test_an_unreadable_reply_to_a_query_is_an_error(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """An error page, a cut-off body or nothing at all is no news of the job, whatever words it holds."""
        succeeded = self._http_recording(handler, recordings, "succeeded")
        query_params = self._query_params(handler, params, recordings, "running")
        for body in (*_UNREADABLE, _half(succeeded)):
            transport = ScriptedTransport([Reply(200, body)])
            problem = _problem(self._ask, handler, transport, query_params)
            assert isinstance(problem, HandlerError), f"{body!r}: expected a HandlerError, found {problem!r}"
        for body in _EMPTY:
            answer = _outcome(self._ask, handler, ScriptedTransport([Reply(200, body)]), query_params)
            is_open = isinstance(answer, QueryResult) and answer.status.is_queryable
            assert is_open or isinstance(answer, HandlerError), f"{body!r} must not end the job: {answer!r}"

    def test_only_a_2xx_reply_is_evidence(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A body that says "succeeded" under a status of failure is an error page."""
        accepted = self._http_recording(handler, recordings, "accepted")
        succeeded = self._http_recording(handler, recordings, "succeeded")
        query_params = self._query_params(handler, params, recordings, "succeeded")
        for status in (302, 408, 500, 502, 503):
            transport = _script(recordings, "accepted", Reply(status, accepted.body))
            problem = _problem(self._submit, handler, params, transport)
            assert not isinstance(problem, _CERTAIN), (
                f"{status}: expected an unknown outcome, found {problem!r}"
            )
            transport = ScriptedTransport([Reply(status, succeeded.body)])
            problem = _problem(self._ask, handler, transport, query_params)
            assert isinstance(problem, HandlerError), f"{status}: expected a HandlerError, found {problem!r}"

    def test_a_throttle_gets_through_with_its_delay(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A vendor that asks for patience closes a gate; swallowed or renamed, it would count as an error."""
        self._http_recording(handler, recordings, "accepted")
        query_params = self._query_params(handler, params, recordings, "running")
        busy = reply({"message": "slow down"}, 429, headers={"Retry-After": "7"})
        for problem in (
            _problem(self._submit, handler, params, _script(recordings, "accepted", busy)),
            _problem(self._ask, handler, ScriptedTransport([busy]), query_params),
        ):
            assert isinstance(problem, ThrottledError), f"expected ThrottledError, found {problem!r}"
            assert problem.delay == timedelta(seconds=7)

    def test_old_query_params_still_work(
        self,
        handler: AnyHandler,
        params: Any,
        recordings: Recordings,
        old_query_params: Iterable[QueryParams],
    ) -> None:
        """Jobs that a released version submitted are found, and so are those of a newer one (G7)."""
        current = self._query_params(handler, params, recordings, "running")
        newer = QueryParams(current.external_task_id, **current.provider_params, added_by_a_newer_version=1)
        for query_params in (newer, *old_query_params):
            result = self._ask(handler, self._stage(recordings, "running"), query_params)
            assert result.status.is_queryable, f"{query_params!r} gave {result!r}"

    # Cancels and lookups.

    def test_the_answers_to_a_cancel_are_told_apart(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A job that is stopped, will stop or will not: three answers, three ends."""
        if not handler.has_cancel:
            pytest.skip("the handler has no cancel")
        recorded = [situation for situation in CANCELS if situation in recordings]
        assert recorded, f"the handler has a cancel: record at least one of {', '.join(CANCELS)}"
        for situation in recorded:
            query_params = self._query_params(handler, params, recordings, situation)
            context = self._query_context(self._stage(recordings, situation))
            result = _called(handler, "cancel", query_params, context)
            assert isinstance(result, CancelResult), f"cancel must return a CancelResult, found {result!r}"
            assert f"cancel_{result.outcome}" == situation

    def test_a_lookup_finds_the_job_or_says_that_there_is_none(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A lookup that finds nothing leads to a second job, so only the vendor's own word may say so."""
        if not handler.has_lookup:
            pytest.skip("the handler has no lookup")
        found = self._look_up(handler, params, self._stage(recordings, "found"))
        assert found.query_params is not None
        assert found.query_params == self._query_params(handler, params, recordings, "found")
        assert self._look_up(handler, params, self._stage(recordings, "not_found")).query_params is None
        if not isinstance(handler, HttpHandler):
            return
        for unsure in (Reply(404, b"no such page"), Reply(500), *(Reply(200, body) for body in _UNREADABLE)):
            transport = ScriptedTransport([unsure])
            problem = _problem(self._look_up, handler, params, transport)
            assert isinstance(problem, HandlerError), (
                f"{unsure!r}: expected a HandlerError, found {problem!r}"
            )

    # Callbacks.

    def test_a_callback_names_its_job(self, handler: AnyHandler, callback: RecordedCallback | None) -> None:
        """A good callback is read, in whatever spelling its headers come, and asks nobody about the job."""
        recorded = _recorded(handler, callback)
        shouted = {name.upper(): value for name, value in recorded.callback.headers.items()}
        for sent in (recorded.callback, attrs.evolve(recorded.callback, headers=shouted)):
            transport = ScriptedTransport(recorded.replies)
            note = self._read_callback(handler, recorded, sent, transport)
            assert note == CallbackNote(recorded.external_task_id), f"read as {note!r}"
            assert len(transport.calls) <= len(recorded.replies), f"made {transport.calls}"

    def test_a_changed_callback_is_refused(
        self, handler: AnyHandler, callback: RecordedCallback | None
    ) -> None:
        """Whoever knows the address can send something to it: only the vendor's own is read."""
        recorded = _recorded(handler, callback, signed=True)
        good = recorded.callback
        changed = {name: _changed(value) for name, value in good.headers.items()}
        for sent in (
            attrs.evolve(good, body=good.body + b" "),
            attrs.evolve(good, headers={}),
            attrs.evolve(good, headers=changed),
        ):
            self._check_refused(handler, recorded, sent)
        for name in good.headers:
            # A header that is not signed may say what it wants, and no callback may name another job for it.
            for headers in (
                {**good.headers, name: changed[name]},
                {other: value for other, value in good.headers.items() if other != name},
            ):
                sent = attrs.evolve(good, headers=headers)
                outcome = _outcome(self._read_callback, handler, recorded, sent)
                is_harmless = outcome == CallbackNote(recorded.external_task_id)
                assert is_harmless or isinstance(outcome, CallbackRefusedError), f"{name}: {outcome!r}"

    def test_a_stale_callback_is_refused(
        self, handler: AnyHandler, callback: RecordedCallback | None
    ) -> None:
        """A callback that somebody kept is not good for ever, and one from the future is nobody's."""
        recorded = _recorded(handler, callback, signed=True)
        for apart in (timedelta(days=1), timedelta(days=-1)):
            sent = attrs.evolve(recorded.callback, received_at=recorded.callback.received_at + apart)
            self._check_refused(handler, recorded, sent)

    def test_an_unreadable_callback_is_refused(
        self, handler: AnyHandler, callback: RecordedCallback | None
    ) -> None:
        """Anybody may have sent it, so it is neither a fault of ours nor news of a job."""
        recorded = _recorded(handler, callback)
        for body in (*_UNREADABLE, *_EMPTY, recorded.callback.body[: len(recorded.callback.body) // 2]):
            self._check_refused(handler, recorded, attrs.evolve(recorded.callback, body=body))

    # Manners.

    def test_a_step_neither_waits_nor_repeats_its_call(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """Loops, sleeps and retries belong to the worker, which knows limits and deadlines."""
        with mock.patch.object(time, "sleep", _no_sleep), mock.patch.object(asyncio, "sleep", _no_sleep):
            transport = self._stage(recordings, "accepted")
            self._submit(handler, params, transport)
            self._check_calls(transport, _length(recordings, "accepted"))
            for situation in ("running", "succeeded", "failed"):
                query_params = self._query_params(handler, params, recordings, situation)
                transport = self._stage(recordings, situation)
                self._ask(handler, transport, query_params)
                self._check_calls(transport, _length(recordings, situation))

    def test_a_step_changes_nothing_that_it_was_given(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """Requests and query params are stored already; what a handler wants to keep it returns."""
        before = repr(params)
        self._submit(handler, params, self._stage(recordings, "accepted"))
        assert repr(params) == before
        query_params = self._query_params(handler, params, recordings, "running")
        seen = repr(query_params)
        self._ask(handler, self._stage(recordings, "running"), query_params)
        assert repr(query_params) == seen

    def test_secrets_stay_between_us_and_the_vendor(
        self, handler: AnyHandler, params: Any, recordings: Recordings
    ) -> None:
        """A secret goes to the configured origin, and into nothing that is stored, logged or printed (G8)."""
        seen = []
        transports = []
        for situation in ("accepted", "running", "succeeded", "failed"):
            query_params = self._query_params(handler, params, recordings, situation)
            seen.append(repr(query_params))
            transport = self._stage(recordings, situation)
            transports.append(transport)
            if situation == "accepted":
                seen.append(repr(self._submit(handler, params, transport)))
            else:
                seen.append(repr(self._ask(handler, transport, query_params)))
        if isinstance(handler, HttpHandler):
            calls = [call for transport in transports for call in transport.calls]
            seen += map(repr, calls)
            knowing = [call for call in calls if _SECRET in _shown(call)]
            for call in knowing:
                is_ours = call.url.startswith(handler.base_url.rstrip("/"))
                assert is_ours, f"{call!r} carries the secret to a foreign origin"
            # A vendor can only echo what it was sent.
            for echo in (
                (reply(f"{_SECRET} is blocked", 401), reply({"error": _SECRET}, 500)) if knowing else ()
            ):
                transport = _script(recordings, "accepted", echo)
                problem = _problem(self._submit, handler, params, transport)
                seen += [str(problem), repr(problem)]
        seen.append(repr(handler))
        for text in seen:
            assert _SECRET not in text, f"the secret is in {text!r}"

    # Running steps.

    def _stage(
        self, recordings: Recordings, situation: str, make: Callable[[], Recording] | None = None
    ) -> Any:
        """Bring a situation about and return the transport for it (``None`` for a handler without HTTP)."""
        recording = recordings.get(situation)
        if recording is None and make is not None:
            if not isinstance(recordings.get("accepted"), Reply | Sequence):
                pytest.skip(f"recordings has no {situation!r}")
            recording = make()
        if recording is None:
            _missing(situation)
        if isinstance(recording, Reply):
            return ScriptedTransport([recording])
        if callable(recording):
            recording()
            return None
        return ScriptedTransport(recording)

    def _submit(
        self, handler: AnyHandler, params: Any, transport: Any, *, now: datetime = _NOW
    ) -> SubmitResult:
        result = _called(handler, "submit", params, self._submit_context(transport, now))
        assert isinstance(result, SubmitResult), f"submit must return a SubmitResult, found {result!r}"
        return result

    def _query(
        self, handler: AnyHandler, params: Any, recordings: Recordings, situation: str, **context: Any
    ) -> QueryResult:
        query_params = self._query_params(handler, params, recordings, situation)
        return self._ask(handler, self._stage(recordings, situation), query_params, **context)

    def _ask(
        self, handler: AnyHandler, transport: Any, query_params: QueryParams, **context: Any
    ) -> QueryResult:
        result = _called(handler, "query", query_params, self._query_context(transport, **context))
        assert isinstance(result, QueryResult), f"query must return a QueryResult, found {result!r}"
        return result

    def _look_up(self, handler: AnyHandler, params: Any, transport: Any) -> LookupResult:
        result = _called(handler, "lookup", params, self._submit_context(transport))
        assert isinstance(result, LookupResult), f"lookup must return a LookupResult, found {result!r}"
        return result

    def _read_callback(
        self,
        handler: AnyHandler,
        recorded: RecordedCallback,
        callback: Callback,
        transport: ScriptedTransport | None = None,
    ) -> Any:
        transport = ScriptedTransport(recorded.replies) if transport is None else transport
        account = Account("contract", lambda part: recorded.secrets.get(part, _SECRET))
        context = attrs.evolve(
            self._query_context(transport, now=recorded.callback.received_at), account=account
        )
        if isinstance(handler, HttpHandler):
            return run(callback_steps(handler, callback, context), context)
        return _called(handler, "read_callback", callback, context)

    def _check_refused(self, handler: AnyHandler, recorded: RecordedCallback, callback: Callback) -> None:
        outcome = _outcome(self._read_callback, handler, recorded, callback)
        assert isinstance(outcome, CallbackRefusedError), f"expected CallbackRefusedError, found {outcome!r}"

    def _query_params(
        self, handler: AnyHandler, params: Any, recordings: Recordings, situation: str
    ) -> QueryParams:
        """Return the params that a query in this situation gets: those of the accepted submit."""
        recording = recordings.get(situation)
        if recording is None:
            _missing(situation)
        if callable(recording):
            arranged = recording()
            if arranged is not None:
                return arranged
        result = self._submit(handler, params, self._stage(recordings, "accepted"))
        assert result.query_params is not None, "an accepted submit must return QueryParams"
        return result.query_params

    def _http_recording(self, handler: AnyHandler, recordings: Recordings, situation: str) -> Reply:
        """Return the last reply of a situation, or skip a rule that is about HTTP."""
        recording = recordings.get(situation)
        if not isinstance(handler, HttpHandler) or callable(recording):
            pytest.skip("the rule is about HTTP replies, and this handler reads none")
        if recording is None:
            _missing(situation)
        last = recording if isinstance(recording, Reply) else recording[-1]
        assert isinstance(last, Reply), f"the recording {situation!r} must end with a Reply, found {last!r}"
        return last

    def _submit_context(self, transport: Any, now: datetime = _NOW) -> SubmitContext:
        return SubmitContext(
            task_id="contract-task-1",
            idempotency_key=_KEY,
            now=now,
            account=Account("contract", lambda _: _SECRET),
            transport=transport,
        )

    def _query_context(
        self, transport: Any, *, query_count: int = 0, consecutive_errors: int = 0, now: datetime = _NOW
    ) -> QueryContext:
        return QueryContext(
            task_id="contract-task-1",
            query_count=query_count,
            consecutive_errors=consecutive_errors,
            created_at=_NOW,
            deadline_at=_NOW + timedelta(hours=24),
            now=now,
            account=Account("contract", lambda _: _SECRET),
            transport=transport,
        )

    def _check_calls(self, transport: Any, expected: int) -> None:
        if transport is not None:
            found = len(transport.calls)
            assert found == expected <= FOLLOWS, (
                f"expected {expected} calls, found {found}: {transport.calls}"
            )


def _outcome(step: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a step came to: its result, or the exception that it raised."""
    try:
        return step(*arguments)
    except AssertionError:
        raise
    except Exception as problem:  # noqa: BLE001  # the rule judges it
        return problem


def _problem(step: Callable[..., Any], *arguments: Any) -> Exception:
    """Return the exception that a step raised; anything else breaks the rule."""
    outcome = _outcome(step, *arguments)
    assert isinstance(outcome, Exception), f"expected an exception, found {outcome!r}"
    return outcome


def _recorded(
    handler: AnyHandler, callback: RecordedCallback | None, *, signed: bool = False
) -> RecordedCallback:
    """Return the recorded callback, or skip a rule that does not concern this handler."""
    if not handler.has_callback:
        pytest.skip("the handler has no read_callback")
    assert callback is not None, "the handler has a read_callback: give the contract a fixture named callback"
    if signed and not callback.is_signed:
        pytest.skip("the vendor does not sign its callbacks: each of them is a hint")
    return callback


def _changed(value: str) -> str:
    """Return a header's value with its last character replaced."""
    return value[:-1] + ("0" if value[-1:] != "0" else "1")


def _missing(situation: str) -> NoReturn:
    if situation in REQUIRED:
        pytest.fail(f"recordings must have a reply for {situation!r}")
    pytest.skip(f"recordings has no {situation!r}")


def _called(handler: AnyHandler, method: str, argument: Any, context: Any) -> Any:
    answer = getattr(handler, method)(argument, context)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer


def _no_sleep(*_: object) -> NoReturn:
    raise AssertionError(
        "a handler must not sleep: the worker queries again after query_after or by its policy"
    )


def _last(recordings: Recordings, situation: str, outcome: Outcome) -> list[Outcome]:
    """Return a recording with its last outcome replaced."""
    recording = recordings[situation]
    assert not callable(recording)
    earlier = [] if isinstance(recording, Reply) else list(recording[:-1])
    return [*earlier, outcome]


def _script(recordings: Recordings, situation: str, outcome: Outcome) -> ScriptedTransport:
    return ScriptedTransport(_last(recordings, situation, outcome))


def _length(recordings: Recordings, situation: str) -> int:
    recording = recordings[situation]
    return len(recording) if isinstance(recording, Sequence) else 1


def _half(recorded: Reply) -> bytes:
    return recorded.body[: len(recorded.body) // 2]


def _check_result(result: object) -> None:
    stored = codec.encode_value(result, field="result", cap=codec.CAPS["result"])
    assert codec.decode_value(stored) == result


def _shown(call: Call) -> str:
    """Return all of a call that goes out."""
    return str(
        (call.method, call.url, call.headers, call.query, call.json, call.form, call.multipart, call.body)
    )


def _field_names(params: Any) -> list[str]:
    return [attribute.name for attribute in attrs.fields(type(params)) if attribute.init]


def _refusal(handler: AnyHandler, params: Any, name: str, value: object) -> Exception | None:
    """Return why a request with this value in this field is refused, or ``None``."""
    try:
        changed = attrs.evolve(params, **{name: value})
        codec.check_request(changed, local_files=handler.local_files)
        handler.validate(changed)
    except (RequestError, TypeError, ValueError, AttributeError) as error:
        # A type may refuse the value already when the request is made.
        return error
    return None


@contextmanager
def _local_things() -> Iterator[list[object]]:
    with tempfile.NamedTemporaryFile() as file, Path(file.name).open("rb") as stream:
        things: list[object] = [stream, io.BytesIO(b"page"), b"page", bytearray(b"page"), Path(file.name)]
        yield [*things, file.name, [file.name], {"nested": [stream]}]
