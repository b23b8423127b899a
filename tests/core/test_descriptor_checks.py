"""Everything that is wrong in a description is told at start, with its place and what to write instead."""

from datetime import timedelta
from typing import Any

import pytest
from tests.core.descriptions import VENDOR, WRAPPED, changed, described

import coatcheck.testing.vendor  # noqa: F401  # registers test.job and test.result
from coatcheck.descriptor import DescribedHandler, Descriptor
from coatcheck.errors import ConfigError, UnknownNameError
from coatcheck.policy import PollPolicy

LOOKUP = {"path": "/jobs", "query": {"key": "{idempotency_key}"}, "jobs": "jobs", "id": "id"}


def refusal(base: dict[str, Any], **changes: Any) -> ConfigError:
    """Return why a description is refused."""
    with pytest.raises(ConfigError) as caught:
        Descriptor.of(changed(base, **changes), "$.handlers[0]").handler()
    return caught.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"akount": "x"}, "unknown key $.handlers[0].akount; did you mean 'account'?"),
        ({"submit__pth": "/x"}, "unknown key $.handlers[0].submit.pth; did you mean 'path'?"),
        (
            {"words__succeededd": ["x"]},
            "unknown key $.handlers[0].words.succeededd; did you mean 'succeeded'?",
        ),
        ({"poll__firsst": "1s"}, "unknown key $.handlers[0].poll.firsst; did you mean 'first'?"),
        (
            {"result__fetch": {"pth": "/x"}},
            "unknown key $.handlers[0].result.fetch.pth; did you mean 'path'?",
        ),
        ({"cancel__don": ["x"]}, "unknown key $.handlers[0].cancel.don; did you mean 'done'?"),
        ({"errors": {"cod": "x"}}, "unknown key $.handlers[0].errors.cod; did you mean 'code'?"),
    ],
)
def test_unknown_key_is_refused_with_its_path_and_the_closest_one(
    changes: dict[str, Any], message: str
) -> None:
    """A misspelt key is not passed over, and comes before the key that is then missing."""
    error = refusal(VENDOR, **changes)
    assert isinstance(error, UnknownNameError)
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("key", 'key is missing; write key = "vendor:operation"'),
        ("base_url", 'base_url is missing; write base_url = "https://'),
        ("submit", "submit is missing; write a table [handlers.submit]"),
        ("query", "query is missing; write a table [handlers.query]"),
        ("words", "words is missing; write words = { succeeded ="),
        ("submit__id", "submit.id is missing; write id ="),
        ("query__status", "query.status is missing; write status ="),
        ("words__failed", "words.failed is missing; write failed ="),
    ],
)
def test_missing_piece_is_told_with_an_example(name: str, message: str) -> None:
    """Whoever forgot something is shown how it is written."""
    assert refusal(VENDOR, **{name: ...}).message.startswith(f"$.handlers[0].{message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": 7}, "key must be a text that is not blank, found an int"),
        ({"submit": "POST /jobs"}, "submit must be a table, found a str"),
        (
            {"submit__method": "POSTT"},
            "submit.method must be one of 'GET', 'POST', 'PUT', 'PATCH', 'DELETE'",
        ),
        ({"submit__timeout": "fast"}, "submit.timeout must be a duration like '30s'"),
        ({"submit__headers": ["x"]}, "submit.headers must be a table"),
        ({"submit__headers__x": 1}, "submit.headers['x'] must be a text"),
        ({"submit__body_cap": "1 MB"}, "submit.body_cap must be a whole number"),
        ({"words__failed": "x"}, "words.failed must be a list, found a str"),
        ({"words__failed": ["a", [1]]}, "words.failed[1] must be a text, a whole number or a boolean"),
        ({"resubmit": "always"}, "resubmit must be one of 'never', 'idempotent', found 'always'"),
        ({"not_found_limit": True}, "not_found_limit must be a whole number"),
        ({"poll": "rampp"}, "poll must be one of 'exponential', 'ramp', found 'rampp'; did you mean 'ramp'?"),
        ({"poll__first": "-1s"}, "poll.first must be a duration"),
        ({"poll__factor": "2"}, "poll.factor must be a number"),
        ({"poll__jitter": 3}, "poll: poll.jitter must be a number from 0 to 1"),
        ({"submit__json": {"a": [object()]}}, "submit.json['a'][0] holds an instance of builtins.object"),
        ({"submit__json": {"a": timedelta(1)}}, "submit.json['a'] holds an instance of datetime.timedelta"),
    ],
)
def test_value_of_the_wrong_kind_is_refused_with_its_path(changes: dict[str, Any], message: str) -> None:
    """What was expected and what was found; nothing is converted by luck."""
    assert refusal(VENDOR, **changes).message.startswith(f"$.handlers[0].{message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"submit__id": "data..id"}, "submit.id must be a JMESPath expression"),
        ({"submit__id": "foo-bar"}, "submit.id must be a JMESPath expression"),
        ({"submit__params": {"a": "x["}}, "submit.params.a must be a JMESPath expression"),
        ({"submit__status": "?"}, "submit.status must be a JMESPath expression"),
        ({"query__status": "a b"}, "query.status must be a JMESPath expression"),
        (
            {"query__progress": "lenngth(x)"},
            "query.progress: JMESPath has no function 'lenngth'; did",
        ),
        ({"query__progress": "x[?sum(@)].y | max(@, @)"}, "query.progress: max() takes 1 arguments, found 2"),
        ({"query__progress": "merge()"}, "query.progress: merge() takes at least 1 arguments, found 0"),
        ({"failure__code": "]"}, "failure.code must be a JMESPath expression"),
        ({"result__value": "{text: }"}, "result.value must be a JMESPath expression"),
        ({"result__url": "'"}, "result.url must be a JMESPath expression"),
        ({"usage": {"pages": "a b"}}, "usage.pages must be a JMESPath expression"),
        ({"errors": {"code": "a b"}}, "errors.code must be a JMESPath expression"),
        ({"errors": {"code": "a", "delay": "a b"}}, "errors.delay must be a JMESPath expression"),
        ({"cancel__outcome": "a b"}, "cancel.outcome must be a JMESPath expression"),
        ({"lookup": LOOKUP | {"jobs": "a b"}}, "lookup.jobs must be a JMESPath expression"),
    ],
)
def test_expression_that_jmespath_cannot_read_is_refused(changes: dict[str, Any], message: str) -> None:
    """A wrong expression is told at start, not by the first job that is lost to it."""
    assert refusal(VENDOR, **changes).message.startswith(f"test:declared: {message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"submit__json": {"a": "{request.dta.x}"}},
            "submit.json.a: unknown placeholder {request.dta.x}; did you",
        ),
        (
            {"submit__json": {"a": ["{taskid}"]}},
            "submit.json.a[0]: unknown placeholder {taskid}; did",
        ),
        (
            {"request": "test.job", "submit__json": "{request.txt}"},
            "submit.json: unknown placeholder {request.txt}",
        ),
        (
            {"request": "test.job", "submit__json": "{request.text.x}"},
            "submit.json: unknown placeholder {request.t",
        ),
        (
            {"submit__headers__K": "{idempotency-key}"},
            "submit.headers.K: unknown placeholder {idempotency-key}; did",
        ),
        ({"submit__query": {"a": "{secret}"}}, "submit.query.a: unknown placeholder {secret}"),
        ({"submit__path": "/x/{region}"}, "submit.path: unknown placeholder {region}"),
        (
            {"submit__keep": {"a": "{external_task_id}"}},
            "submit.keep.a: unknown placeholder {external_task_id}",
        ),
        ({"query__path": "/x/{params.a}"}, "query.path: unknown placeholder {params.a}"),
        ({"query__path": "/x/{request.data.a}"}, "query.path: unknown placeholder {request.data.a}"),
        (
            {"query__query": {"k": "{idempotency_key}"}},
            "query.query.k: unknown placeholder {idempotency_key}",
        ),
        ({"result__fetch": {"url": "{url}"}}, "result.fetch.url: unknown placeholder {url}"),
        ({"auth": {"A": "{task_id}"}}, "auth.A: unknown placeholder {task_id}"),
        ({"base_url": "https://{region}.x"}, "base_url: unknown placeholder {region}"),
    ],
)
def test_unknown_placeholder_is_refused_with_the_closest_name(changes: dict[str, Any], message: str) -> None:
    """What is known at a place is listed, and where the value can come from is told."""
    error = refusal(VENDOR, **changes)
    assert isinstance(error, UnknownNameError)
    assert error.message.startswith(f"test:declared: {message}")
    assert "known here: " in error.message


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"query__query": {"k": "{request.data.k}"}}, "keep = { name ="),
        ({"query__query": {"k": "{idempotency_key}"}}, "keep = { key ="),
        ({"submit__json": "{secret}"}, "auth only"),
        ({"submit__path": "/{region}"}, "Write region ="),
        ({"auth": {"A": "{request.data}"}}, "other headers stand in"),
    ],
)
def test_placeholder_that_belongs_elsewhere_is_explained(changes: dict[str, Any], hint: str) -> None:
    """The name is right and the place is wrong: the message says how to get the value there."""
    assert hint in refusal(VENDOR, **changes).message


@pytest.mark.parametrize(
    "text", ["{", "}", "{}", "{a b}", "{task_id!r}", "{task_id:>9}", "{0}", "{task_id[0]}"]
)
def test_braces_that_hold_no_name_are_refused(text: str) -> None:
    """Templates have names and nothing else: no format, no index, no call."""
    assert "placeholder" in refusal(VENDOR, submit__json={"a": text}).message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"submit__path": ...}, "submit needs either path"),
        ({"submit__url": "https://x.example/"}, "submit needs either path"),
        ({"submit__path": "jobs"}, "submit.path must begin with one /"),
        ({"submit__path": "//evil.example/x"}, "submit.path must begin with one /"),
        ({"submit__path": "/jobs?x=1"}, "submit.path must begin with one / and hold no ?"),
        ({"submit__path": "/a/../b"}, "submit.path must not hold . or .."),
        ({"submit__path": "/a/{request.data.x?}"}, "submit.path: an address needs all of its parts"),
        ({"submit__path": ..., "submit__url": "/jobs"}, "submit.url must be one placeholder"),
        ({"submit__path": ..., "submit__url": "https://{task_id}/"}, "submit.url must be one placeholder"),
        ({"submit__headers": {"a b": "x"}}, "submit.headers: 'a b' cannot be the name of a header"),
        ({"submit__headers__authorization": "Bearer x"}, "submit.headers: credentials stand in auth"),
        ({"submit__timeout": "10m"}, "submit.timeout must be positive and within the call_limit"),
        ({"submit__timeout": 0}, "submit.timeout must be positive and within the call_limit"),
        ({"submit__body_cap": 0}, "submit.body_cap must be a number of bytes"),
        ({"base_url": "vendor.example"}, "base_url must be an absolute http or https URL"),
        ({"base_url": "ftp://vendor.example"}, "base_url must be an absolute http or https URL"),
        ({"base_url": "https://me:pw@vendor.example"}, "base_url must be an absolute http or https URL"),
        ({"base_url": "https://vendor.example?key=x"}, "base_url must be an absolute http or https URL"),
        ({"base_url": "https://[::x"}, "base_url must be an absolute http or https URL"),
        ({"region": "a/b"}, "region must be letters, digits"),
        ({"allowed_hosts": ["https://x.example/y"]}, "allowed_hosts lists hosts"),
        ({"allowed_hosts": ["x.example/y"]}, "allowed_hosts lists hosts"),
        ({"auth": {"Authorization": "Bearer abc"}}, "auth.Authorization needs {secret}"),
        ({"auth": {"Authorization": "Bearer {secret?}"}}, "auth.Authorization: credentials cannot"),
        ({"request": "json.rrequest"}, "request: unknown type 'json.rrequest'; did"),
        ({"result__type": "test.reslt"}, "result.type: unknown type 'test.reslt'; did"),
        (
            {"result": {"type": "test.result", "value": "{txt: a}"}},
            "result.value: test.result has no field 'txt'",
        ),
        ({"result": {"type": "test.job", "value": "{script: a}"}}, "result.value must have the field 'text'"),
        ({"result": {"type": "test.result", "url": "a"}}, "result.value is missing"),
        ({"result__fetch": {"path": "/result"}}, "result.fetch must say which result is meant"),
        (
            {"result__fetch": {"path": "/{external_task_id}", "plain": True}},
            "result.fetch.plain is for a url",
        ),
        ({"words__failed": []}, "words.failed must list at least one word"),
        ({"words__failed": ["Succeeded"]}, "words: 'succeeded' is listed as succeeded and as failed"),
        ({"errors": {"code": "a", "ok": [0], "failed": ["0"]}}, "errors: '0' is listed as ok and as failed"),
        ({"submit__headers": ...}, 'resubmit = "idempotent" needs {idempotency_key}'),
        ({"submit__headers": ..., "resubmit": "never", "lookup": LOOKUP}, "lookup needs {idempotency_key}"),
        ({"query__path": "/jobs"}, "query must say which job is meant"),
        ({"cancel__path": "/cancel"}, "cancel must say which job is meant"),
        ({"cancel__outcome": ...}, "cancel needs outcome"),
        ({"cancel__done": [], "cancel__refused": []}, "cancel.outcome needs words"),
        ({"cancel__refused_status": [200]}, "cancel.refused_status may list 400 to 499, found 200"),
        ({"lookup": LOOKUP | {"query": {}}}, "lookup must ask for our key"),
        (
            {"lookup": LOOKUP, "submit__params": {"a": "b"}},
            "lookup.params must have the names of submit.params",
        ),
        ({"lookup": LOOKUP | {"params": {"a": "b"}}}, "lookup.params must have the names of submit.params"),
        ({"query__progress": ..., "query__total": "x"}, "query.total needs progress"),
        ({"failure": {"retryable": ["x"]}}, "failure.retryable needs code"),
        (
            {"submit__params": {"a": "b"}, "submit__keep": {"a": "c"}},
            "'a' is in submit.params and in submit.keep",
        ),
        ({"submit__params": {"a-b": "b"}}, "a stored param is named with letters, digits and _"),
        ({"submit__keep": {"region": "x"}}, 'the param "region" is stored by itself'),
    ],
)
def test_description_that_cannot_work_is_refused_with_the_fix(changes: dict[str, Any], message: str) -> None:
    """Each part may be well-formed and the whole make no sense; that too comes to light at start."""
    error = refusal(VENDOR, **changes)
    assert error.message.startswith((f"test:declared: {message}", f"test:declared: resubmit: {message}"))


@pytest.mark.parametrize(
    "auth", ["Bearer s3cret", ["Bearer s3cret"], {"A": ["Bearer s3cret"]}, {"A": "Bearer s3cret"}]
)
def test_secret_that_somebody_wrote_into_the_file_is_not_shown(auth: object) -> None:
    """A description holds no credentials, and what is refused is not repeated where everybody reads it."""
    assert "s3cret" not in refusal(VENDOR, auth=auth).message


def test_description_is_a_table() -> None:
    """A list or a text in place of a description is told as such."""
    with pytest.raises(ConfigError, match="must be a table"):
        Descriptor.of([])  # type: ignore[arg-type]  # the point of the test


def test_everything_that_a_handler_can_say_of_itself_comes_from_the_description() -> None:
    """What other handlers write in their class stands in the table."""
    handler = described(
        provider="shop",
        account="other",
        call_limit="30s",
        lookup_delay="1m",
        max_job_time="2h",
        not_found_limit=5,
        keep_params="accepted",
        poll="ramp",
        allowed_hosts=["Files.Vendor.Example", ".vendor.example", "http://10.0.0.7:9000", "::1"],
    )
    assert isinstance(handler, DescribedHandler)
    assert (handler.key, handler.provider_key, handler.account) == ("test:declared", "shop", "other")
    assert handler.poll == PollPolicy.ramp()
    assert handler.allowed_hosts[:2] == ("files.vendor.example", ".vendor.example")
    traits = handler.traits
    assert (traits.resubmit, traits.keep_params, traits.not_found_limit) == ("idempotent", "accepted", 5)
    assert (traits.lookup_delay, traits.max_job_time) == (timedelta(minutes=1), timedelta(hours=2))
    assert (traits.has_cancel, traits.has_lookup) == (True, False)
    bare = described(WRAPPED).traits
    assert (bare.resubmit, bare.has_cancel, bare.has_lookup) == ("never", False, False)
