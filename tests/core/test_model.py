"""Options, limits, results and tasks as values: what they take, what they refuse and what they say then."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import model
from coatcheck.errors import ConfigError, HandlerError, UnknownNameError, ValidationError
from coatcheck.model import (
    Account,
    CancelResult,
    Failure,
    HandlerTraits,
    Limit,
    LookupResult,
    Phase,
    QueryParams,
    QueryResult,
    Rate,
    Side,
    Step,
    SubmitOptions,
    SubmitResult,
    Task,
    TaskChange,
    TaskStatus,
    check_aware,
    check_name,
)
from coatcheck.policy import PollPolicy

SECOND = timedelta(seconds=1)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
#: The values of F52: each option has an answer to all of them.
ODD: dict[str, Any] = {
    "None": None,
    "0": 0,
    "-1": -1,
    "'5'": "5",
    "1e12": 1e12,
    "True": True,
    "0 s": timedelta(),
    "-1 s": -SECOND,
    "1e12 s": timedelta(seconds=1e12),
    "1 s": SECOND,
    "1": 1,
}

#: Which of them each option takes; all others are refused when the object is made.
TAKEN: dict[tuple[str, str], set[str]] = {
    ("SubmitOptions", "delay"): {"0 s", "1 s"},
    ("SubmitOptions", "run_at"): {"None"},
    ("SubmitOptions", "deadline"): {"1 s"},
    ("SubmitOptions", "queue_deadline"): {"None", "1 s"},
    ("SubmitOptions", "stall_limit"): {"None", "1 s"},
    ("SubmitOptions", "priority"): {"0", "-1", "1"},
    ("SubmitOptions", "tenant"): {"'5'"},
    ("SubmitOptions", "handler_key"): {"None", "'5'"},
    ("SubmitOptions", "provider_key"): {"None", "'5'"},
    ("SubmitOptions", "account"): {"None", "'5'"},
    ("SubmitOptions", "dedupe_key"): {"None", "'5'"},
    ("SubmitOptions", "idempotency_key"): {"None", "'5'"},
    ("SubmitOptions", "metadata"): set(),
    ("SubmitOptions", "on_duplicate"): set(),
    ("SubmitOptions", "cancel_on_deadline"): {"True"},
    ("Rate", "count"): {"1"},
    ("Rate", "per"): {"1 s"},
    ("Limit", "live"): {"None", "1"},
    ("Limit", "rate"): {"None"},
    ("Limit", "side"): {"None"},
    ("Limit", "provider"): {"None"},
    ("Limit", "account"): {"'5'"},
    ("Limit", "tenant"): {"None"},
    ("PollPolicy", "first"): {"0 s", "1 s"},
    ("PollPolicy", "start"): {"0 s", "1 s"},
    ("PollPolicy", "step"): {"0 s", "1 s"},
    ("PollPolicy", "cap"): {"0 s", "1 s"},
    ("PollPolicy", "error_start"): {"0 s", "1 s"},
    ("PollPolicy", "error_cap"): {"1 s"},
    ("PollPolicy", "factor"): {"1"},
    ("PollPolicy", "error_factor"): {"1"},
    ("PollPolicy", "max_errors"): {"None", "1"},
    ("PollPolicy", "jitter"): {"0", "1"},
}

MAKERS: dict[str, Callable[..., Any]] = {
    "SubmitOptions": SubmitOptions,
    "Rate": lambda **options: Rate(**{"count": 1, **options}),
    "Limit": lambda **options: Limit(**{"account": "main", **options}),
    "PollPolicy": PollPolicy,
}


def test_matrix_names_every_option() -> None:
    """A new option gets its line in the matrix."""
    names = {
        (cls.__name__, one.name)
        for cls in (SubmitOptions, Rate, Limit, PollPolicy)
        for one in attrs.fields(cls)
    }
    assert names - {("SubmitOptions", "charge")} == set(TAKEN)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(("owner", "option"), TAKEN, ids="-".join)
def test_odd_value_is_taken_as_documented_or_refused_at_once(owner: str, option: str, value: str) -> None:
    """None, 0, −1, "5", 1e12 and True mean what the option says, or are refused at once (F52)."""
    if value in TAKEN[owner, option]:
        made = MAKERS[owner](**{option: ODD[value]})
        assert getattr(made, option) == ODD[value]
        return
    with pytest.raises(ValidationError, match=r"must be|limited for|a rate is for") as caught:
        MAKERS[owner](**{option: ODD[value]})
    assert "found" in str(caught.value)


@pytest.mark.parametrize("priority", [-1000, 1000])
def test_priority_has_bounds(priority: int) -> None:
    """−1000 to 1000 is allowed, one step further is not."""
    assert SubmitOptions(priority=priority).priority == priority
    with pytest.raises(ValidationError, match="from -1000 to 1000"):
        SubmitOptions(priority=priority + (1 if priority > 0 else -1))


def test_longest_duration_is_ten_years() -> None:
    """Ten years pass, a microsecond more is taken for a slip of the unit."""
    assert SubmitOptions(deadline=model.LONGEST).deadline == timedelta(days=3650)
    with pytest.raises(ValidationError, match="up to 3650 days"):
        SubmitOptions(deadline=model.LONGEST + timedelta.resolution)


@pytest.mark.parametrize("value", ["", " ", "a\nb", "a\x00", "a\x85b", "\ud800", "x" * 201, b"x"])
def test_name_is_printable_text(value: object) -> None:
    """A blank name, control characters, lone surrogates and more than 200 characters are refused."""
    with pytest.raises(ValidationError, match="1 to 200 characters"):
        check_name(value, "account")


@pytest.mark.parametrize("value", ["x", "ocr:gitee", "名前 7", "x" * 200, "é\u0301"])
def test_name_may_be_in_any_language(value: str) -> None:
    """Names are for people; only what breaks logs and stores is refused."""
    check_name(value, "account")


def test_blank_tenant_is_a_tenant() -> None:
    """The tenant "" is one too; a blank that is not empty is a slip."""
    assert SubmitOptions().tenant == ""
    assert Limit(tenant="", live=3).tenant == ""
    with pytest.raises(ValidationError, match="tenant"):
        SubmitOptions(tenant=" ")


@pytest.mark.parametrize("zone", ["Australia/Sydney", "Pacific/Auckland", "Europe/London", "UTC"])
@pytest.mark.parametrize("fold", [0, 1])
def test_instant_in_any_zone_means_the_same_in_utc(zone: str, fold: int) -> None:
    """An aware time is the same instant in UTC, also where clocks are set back and show it twice (F71)."""
    local = datetime(2026, 10, 25, 1, 30, fold=fold, tzinfo=ZoneInfo(zone))
    kept = SubmitOptions(run_at=local).run_at
    assert kept is not None
    assert kept.tzinfo is UTC
    assert kept.timestamp() == local.timestamp()


def test_naive_time_is_refused_with_the_fix() -> None:
    """A naive datetime is somebody's local time by accident (F71)."""
    with pytest.raises(
        ValidationError, match=r"naive 2026-03-01T12:00:00; write datetime.now\(UTC\)"
    ) as caught:
        SubmitOptions(run_at=datetime(2026, 3, 1, 12))  # noqa: DTZ001  # the mistake that is refused
    assert caught.value.field == "run_at"


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime(9000, 1, 1, tzinfo=UTC),
    ],
)
def test_instant_at_the_edge_of_the_calendar_is_refused(value: datetime) -> None:
    """A deadline added to it would not be a date any more."""
    with pytest.raises(ValidationError, match="years 1900 to 8999"):
        check_aware(value, "run_at")


def test_delay_and_run_at_exclude_each_other() -> None:
    """Two times to start at contradict each other; a delay of zero says nothing."""
    with pytest.raises(ValidationError, match="either delay or run_at"):
        SubmitOptions(delay=SECOND, run_at=NOW)
    assert SubmitOptions(delay=timedelta(), run_at=NOW).run_at == NOW


def test_unknown_option_names_the_nearest() -> None:
    """A misspelt option is an error that says what was meant."""
    with pytest.raises(UnknownNameError, match="unknown option 'dead_line'; did you mean 'deadline'"):
        SubmitOptions.of(dead_line=SECOND)
    assert SubmitOptions.of(deadline=SECOND).deadline == SECOND


def test_metadata_is_a_copy_that_cannot_be_changed() -> None:
    """What the caller does to its dict later does not reach the task, and nobody changes it in place."""
    tags = ["a"]
    mine = {"order": 7, "tags": tags}
    options = SubmitOptions(metadata=mine)
    mine["order"] = 8
    tags.append("b")
    assert options.metadata == {"order": 7, "tags": ["a"]}
    with pytest.raises(TypeError):
        options.metadata["order"] = 9  # type: ignore[index]  # the mistake that is refused


def test_metadata_that_cannot_be_copied_is_refused() -> None:
    """An open file in metadata is a request error, not whatever ``copy`` says about it."""
    with Path(__file__).open() as stream, pytest.raises(ValidationError, match="metadata must hold"):
        SubmitOptions(metadata={"log": stream})


# Limits.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"provider": "p"},
        {"account": "a", "tenant": "t", "live": 1},
        {"provider": "p", "live": 1},
        {"account": "a", "rate": Rate(1)},
        {"side": "submit", "rate": Rate(1)},
        {"side": "submit", "tenant": "t", "rate": Rate(1)},
        {"side": "query", "account": "a", "live": 1},
        {"side": "both", "account": "a"},
        {"side": "submit", "account": "a", "rate": 5},
    ],
)
def test_limit_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    """A rate needs a side and a provider or account; live jobs need one account or one tenant."""
    with pytest.raises(ValidationError):
        Limit(**options)


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({"account": "a", "live": 2}, ("live", None, "a", None)),
        ({"account": "a"}, ("live", None, "a", None)),
        ({"tenant": "", "live": 2}, ("live", None, None, "")),
        ({"provider": "p", "side": "submit", "rate": Rate(5)}, ("submit", "p", None, None)),
        ({"provider": "p", "account": "*", "side": Side.QUERY}, ("query", "p", "*", None)),
    ],
)
def test_limits_with_one_subject_replace_each_other(
    options: dict[str, Any], subject: tuple[Any, ...]
) -> None:
    """The subject leaves the amount out, so that a changed or lifted limit meets the old one."""
    assert Limit(**options).subject == subject


# What handlers return.


@given(st.floats() | st.integers() | st.booleans() | st.none() | st.text())
def test_progress_is_0_to_100_or_unknown(value: Any) -> None:
    """Anything else is unknown, never invented and never an error (F26)."""
    progress = QueryResult.running(value).progress
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        assert progress == value
    else:
        assert progress is None


@pytest.mark.parametrize("external_id", ["", "  ", None, 7])
def test_blank_external_id_is_a_handlers_error(external_id: Any) -> None:
    """A trace header or an empty field is no job id (F25)."""
    with pytest.raises(HandlerError, match="non-blank text") as caught:
        QueryParams(external_id)
    assert caught.value.code == "no_external_task_id"


def test_query_params_are_read_by_name_and_read_only() -> None:
    """Handlers read what they stored; a provider param may even have the id's name."""
    params = QueryParams("job-1", region="north", external_task_id="other")
    assert (params["region"], params.get("zone", "?"), params.get("zone")) == ("north", "?", None)
    assert (params.external_task_id, params["external_task_id"]) == ("job-1", "other")
    assert params == QueryParams("job-1", external_task_id="other", region="north")
    with pytest.raises(KeyError):
        params["zone"]
    with pytest.raises(TypeError):
        params.provider_params["region"] = "south"  # type: ignore[index]  # the mistake that is refused


def test_results_carry_what_their_names_say() -> None:
    """Each constructor sets its status and passes its arguments on."""
    job = QueryParams("job-1")
    pairs = [("file", "f-1")]
    made = [
        SubmitResult.submitted(job, provider_status="Q", query_after=SECOND, resources=pairs),
        SubmitResult.running(job, 5, provider_status="R", query_after=SECOND, resources=pairs),
        SubmitResult.failed("bad", "no", retryable=True, usage={"page": 1}, provider_status="F"),
        SubmitResult.succeeded(
            "r", usage={"page": 1}, expires_after=SECOND, resources=pairs, provider_status="S"
        ),
        QueryResult.submitted(provider_status="Q", next_query_params=job, query_after=SECOND),
        QueryResult.running(
            5, provider_status="R", next_query_params=job, query_after=SECOND, resources=pairs
        ),
        QueryResult.failed("bad", "no", True, usage={"page": 1}, provider_status="F"),  # noqa: FBT003  # as documented
        QueryResult.succeeded(
            "r", usage={"page": 1}, expires_after=SECOND, resources=pairs, provider_status="S"
        ),
        QueryResult.canceled(usage={"page": 1}, provider_status="C"),
    ]
    assert [result.status.value for result in made] == [
        *("submitted", "running", "failed", "succeeded"),
        *("submitted", "running", "failed", "succeeded", "canceled"),
    ]
    assert [result.provider_status for result in made] == list("QRFSQRFSC")
    assert [result.resources for result in made if result.resources] == [(("file", "f-1"),)] * 5
    assert [result.usage for result in made if result.usage] == [{"page": 1}] * 5
    assert [result.query_after for result in made if result.query_after] == [SECOND] * 4
    assert [result.expires_after for result in made if result.expires_after] == [SECOND] * 2
    assert [result.progress for result in made if result.progress] == [5, 5]
    assert made[2].error == Failure("bad", "no", Phase.SUBMIT, retryable=True)
    assert made[6].error == Failure("bad", "no", Phase.QUERY, retryable=True)
    assert isinstance(made[3], SubmitResult)
    assert isinstance(made[7], QueryResult)


@pytest.mark.parametrize("usage", [{"page": 1.5}, {"page": -1}, {"": 1}, {"page": True}, {"page": 2**53 + 1}])
def test_usage_is_whole_numbers_by_unit(usage: dict[str, Any]) -> None:
    """Money is made of usage: a float, a negative number or a nameless unit is refused where it is made."""
    for make in (lambda: QueryResult.succeeded("r", usage=usage), lambda: CancelResult.done(usage)):
        with pytest.raises(ValidationError):
            make()


def test_cancel_and_lookup_results() -> None:
    """The three answers to a cancel and the two to a lookup."""
    assert CancelResult.done({"page": 1}).usage == {"page": 1}
    outcomes = [CancelResult.done(), CancelResult.accepted(), CancelResult.refused("too late")]
    assert [(one.outcome, one.message) for one in outcomes] == [
        ("done", ""),
        ("accepted", ""),
        ("refused", "too late"),
    ]
    job = QueryParams("job-1")
    assert LookupResult.found(job).query_params is job
    assert LookupResult.not_found().query_params is None


def test_account_never_shows_its_secret() -> None:
    """``repr`` names the account; the secret is looked up at each call, so rotation reaches tasks (G8)."""
    secrets = iter(["first", "second"])
    account = Account("main", lambda part: f"{part}-{next(secrets)}")
    assert repr(account) == "Account(name='main')"
    assert [account.secret(), account.secret("token")] == ["secret-first", "token-second"]


def test_account_without_the_part_says_so() -> None:
    """Whatever the source raises reaches the handler."""

    def missing(part: str) -> str:
        raise ConfigError(f"no {part}")

    with pytest.raises(ConfigError, match="no secret"):
        Account("main", missing).secret()


# Tasks.


def task() -> Task:
    """Return a small task."""
    return Task(
        id="task-1",
        status=TaskStatus.RUNNING,
        handler_key="k",
        provider_key="p",
        account="a",
        created_at=NOW,
        scheduled_at=NOW,
        deadline_at=NOW,
        updated_at=NOW,
    )


def test_every_status_is_an_end_queryable_or_before_the_job() -> None:
    """Five ends, two queryable, two in which no job is known."""
    ends = {status for status in TaskStatus if status.is_end}
    queryable = {status for status in TaskStatus if status.is_queryable}
    assert (len(ends), queryable, ends & queryable) == (5, {TaskStatus.SUBMITTED, TaskStatus.RUNNING}, set())
    assert set(TaskStatus) - ends - queryable == {TaskStatus.PENDING_SUBMIT, TaskStatus.SUBMITTING}


def test_statuses_are_stored_by_value() -> None:
    """Stored words never change: old rows are read by them for ever (G7)."""
    assert [status.value for status in TaskStatus] == [name.lower() for name in TaskStatus.__members__]
    assert (Step.SUBMIT.side, Step.RESUBMIT.side) == (Side.SUBMIT, Side.SUBMIT)
    assert {step.side for step in (Step.LOOKUP, Step.QUERY, Step.CANCEL)} == {Side.QUERY}


def test_evolved_task_is_another_task() -> None:
    """``evolve`` copies like ``attrs.evolve``, and the task itself stays frozen."""
    first = task()
    second = first.evolve(progress=5.0, query_params=QueryParams("job-1"))
    assert second == attrs.evolve(first, progress=5.0, query_params=QueryParams("job-1"))
    assert (first.progress, first.external_task_id, second.external_task_id) == (None, None, "job-1")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        second.progress = 6.0  # type: ignore[misc]  # the mistake that is refused


def test_repr_of_a_task_leaves_out_what_it_does_not_know() -> None:
    """Fields of a newer version may hold anything, so they are not shown."""
    odd = task().evolve(unknown_fields=MappingProxyType({"later": "x" * 10_000}))
    assert len(repr(odd)) < 5_000


def test_traits_are_plain_values() -> None:
    """Traits ride on each task, so they compare, hash and travel."""
    traits = HandlerTraits(resubmit="idempotent", has_lookup=True)
    assert pickle.loads(pickle.dumps(traits)) == traits
    assert hash(traits) == hash(HandlerTraits(resubmit="idempotent", has_lookup=True))


def test_change_says_what_moved_without_payloads() -> None:
    """Observers hear ids and statuses; a new task has no status before."""
    added = TaskChange.of(None, task())
    assert (added.from_status, added.to_status, added.task_id) == (None, TaskStatus.RUNNING, "task-1")
    after = task().evolve(status=TaskStatus.FAILED, generation=2, updated_at=NOW + SECOND)
    moved = TaskChange.of(task(), after)
    assert (moved.from_status, moved.to_status) == (TaskStatus.RUNNING, TaskStatus.FAILED)
    assert (moved.at, moved.tenant, moved.handler_key, moved.generation) == (NOW + SECOND, "", "k", 2)
