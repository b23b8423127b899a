"""Hypothesis strategies for what coatcheck stores and passes around: names, options, records, limits.

All values are valid and made by public constructors; a test that wants bad values builds them itself.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from coatcheck.lifecycle import GateClose
from coatcheck.model import (
    LONGEST,
    CancelFlag,
    Failure,
    HandlerTraits,
    Limit,
    Observation,
    Phase,
    QueryParams,
    Rate,
    Side,
    Step,
    SubmitOptions,
    Task,
    TaskStatus,
    Verdict,
)
from coatcheck.store import NewTask

_MICRO = timedelta(microseconds=1)
#: Everything that a name may hold: no control characters and no lone surrogates.
_NAME_TEXT = st.characters(exclude_categories=["Cc", "Cs"])


def names() -> st.SearchStrategy[str]:
    """Names of handlers, providers, accounts and keys: 1 to 200 characters, some of them odd."""
    plain = st.sampled_from(["a", "ocr:gitee", "default", "{tag}", "a:b|c", "50%_*", "文档"])
    return plain | st.text(_NAME_TEXT, min_size=1, max_size=200).filter(lambda text: bool(text.strip()))


def tenants() -> st.SearchStrategy[str]:
    """Tenants: a name, or the blank one."""
    return st.just("") | names()


def instants(
    start: datetime = datetime(1990, 1, 1, tzinfo=UTC), end: datetime = datetime(2200, 1, 1, tzinfo=UTC)
) -> st.SearchStrategy[datetime]:
    """Aware UTC datetimes."""
    first, last = start.replace(tzinfo=None), end.replace(tzinfo=None)
    return st.datetimes(first, last).map(lambda naive: naive.replace(tzinfo=UTC))


def durations(shortest: timedelta = _MICRO, longest: timedelta = LONGEST) -> st.SearchStrategy[timedelta]:
    """Durations that an option accepts; give ``timedelta()`` as the shortest where zero is one."""
    return st.timedeltas(shortest, longest)


def payloads(max_size: int = 200) -> st.SearchStrategy[bytes]:
    """Bytes as a store keeps them: opaque, so any."""
    return st.binary(max_size=max_size)


def json_values(max_leaves: int = 10) -> st.SearchStrategy[Any]:
    """Values that survive JSON unchanged: None, booleans, whole and finite numbers, text, lists, dicts."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=max_leaves,
    )


def json_objects() -> st.SearchStrategy[dict[str, Any]]:
    """Dicts of JSON values with short text keys, for metadata and the like."""
    return st.dictionaries(st.text("abcxyz_文", min_size=1, max_size=8), json_values(5), max_size=4)


def query_params() -> st.SearchStrategy[QueryParams]:
    """External ids with the params that a handler wants back."""
    params = st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True), json_values(5), max_size=3)
    return st.builds(lambda external, given: QueryParams(external, **given), names(), params)


def failures() -> st.SearchStrategy[Failure]:
    """Why something went wrong."""
    return st.builds(
        Failure, names(), st.text(_NAME_TEXT, max_size=80), st.sampled_from(Phase), st.booleans()
    )


def usages() -> st.SearchStrategy[Mapping[str, int]]:
    """Units with whole numbers."""
    return st.dictionaries(st.sampled_from(["page", "second", "token"]), st.integers(0, 2**53))


def resources() -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    """Pairs of kind and id, each once."""
    return st.lists(st.tuples(names(), names()), unique=True, max_size=3).map(tuple)


def traits() -> st.SearchStrategy[HandlerTraits]:
    """What a task copies from its handler."""
    return st.builds(
        HandlerTraits,
        resubmit=st.sampled_from(["never", "idempotent"]),
        has_lookup=st.booleans(),
        has_cancel=st.booleans(),
        lookup_delay=durations(longest=timedelta(hours=1)),
        max_job_time=durations(timedelta(), timedelta(hours=24)),
        not_found_limit=st.integers(1, 5),
        keep_params=st.sampled_from(["ended", "accepted"]),
    )


def submit_options() -> st.SearchStrategy[SubmitOptions]:
    """Options of one submit; either a delay or a ``run_at`` or neither."""
    when: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.just({}),
        st.fixed_dictionaries({"delay": durations(timedelta())}),
        st.fixed_dictionaries({"run_at": instants()}),
    )
    rest = st.fixed_dictionaries(
        {},
        optional={
            "handler_key": names(),
            "provider_key": names(),
            "account": names(),
            "tenant": tenants(),
            "priority": st.integers(-1000, 1000),
            "deadline": durations(),
            "queue_deadline": st.none() | durations(),
            "stall_limit": st.none() | durations(),
            "metadata": json_objects(),
            "dedupe_key": names(),
            "on_duplicate": st.sampled_from(["return", "retry_failed"]),
            "idempotency_key": names(),
            "cancel_on_deadline": st.booleans(),
        },
    )
    return st.builds(lambda first, second: SubmitOptions.of(**first, **second), when, rest)


def rates() -> st.SearchStrategy[Rate]:
    """Rates that a limit accepts."""
    return st.builds(Rate, st.integers(1, 1_000_000), durations())


def limits() -> st.SearchStrategy[Limit]:
    """Every kind of limit: rates of a provider, an account or both, live jobs of an account or a tenant."""
    name = names() | st.just("*")
    subjects = st.sampled_from([("provider",), ("account",), ("provider", "account")]).flatmap(
        lambda fields: st.fixed_dictionaries(dict.fromkeys(fields, name))
    )
    rated = st.builds(
        lambda subject, side, rate: Limit(**subject, side=side, rate=rate),
        subjects,
        st.sampled_from(Side),
        st.none() | rates(),
    )
    counts = st.none() | st.integers(1, 1_000_000)
    accounts = st.builds(lambda account, live: Limit(account=account, live=live), name, counts)
    of_tenants = st.builds(
        lambda tenant, live: Limit(tenant=tenant, live=live), tenants() | st.just("*"), counts
    )
    return rated | accounts | of_tenants


def gates() -> st.SearchStrategy[GateClose]:
    """Closings of a gate, with and without a delay of the vendor's."""
    short = durations(timedelta(seconds=1), timedelta(hours=1))
    return st.builds(GateClose, delay=st.none() | short, start=short, factor=st.floats(1, 10), cap=short)


def new_tasks() -> st.SearchStrategy[NewTask]:
    """Tasks to be added, with opaque bytes."""
    when: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.just({}),
        st.fixed_dictionaries({"delay": durations(timedelta(), timedelta(hours=24))}),
        st.fixed_dictionaries({"run_at": instants()}),
    )
    rest = st.fixed_dictionaries(
        {
            "id": names(),
            "format": st.integers(1, 3),
            "record": payloads(),
            "params": payloads(),
            "handler_key": names(),
            "provider_key": names(),
            "account": names(),
        },
        optional={
            "tenant": tenants(),
            "priority": st.integers(-1000, 1000),
            "deadline": durations(),
            "queue_deadline": st.none() | durations(),
            "stall_limit": st.none() | durations(),
            "dedupe_key": names(),
            "dedupe_digest": st.binary(min_size=32, max_size=32),
        },
    )
    return st.builds(lambda first, second: NewTask(**first, **second), when, rest)


def tasks(status: TaskStatus | None = None) -> st.SearchStrategy[Task]:
    """Records whose fields are each possible; together they need not be one that a life leads to."""
    at = instants()
    maybe_at = st.none() | at
    observations = st.builds(
        Observation, st.sampled_from(TaskStatus), st.none() | st.floats(0, 100), st.none() | names(), at
    )
    counts = st.integers(0, 1000)
    return st.builds(
        Task,
        id=names(),
        status=st.sampled_from(TaskStatus) if status is None else st.just(status),
        version=counts,
        generation=st.integers(1, 100),
        verdict=st.none() | st.sampled_from(Verdict),
        handler_key=names(),
        provider_key=names(),
        account=names(),
        tenant=tenants(),
        priority=st.integers(-1000, 1000),
        request_type=names(),
        idempotency_key=names(),
        dedupe_key=st.none() | names(),
        metadata=json_objects(),
        cancel_on_deadline=st.booleans(),
        traits=traits(),
        deadline=durations(),
        queue_deadline=st.none() | durations(),
        stall_limit=st.none() | durations(),
        created_at=at,
        scheduled_at=at,
        deadline_at=at,
        queue_deadline_at=maybe_at,
        stall_at=maybe_at,
        due_at=maybe_at,
        updated_at=at,
        submitted_at=maybe_at,
        finished_at=maybe_at,
        next_step=st.none() | st.sampled_from(Step),
        cancel=st.sampled_from(CancelFlag),
        is_leased=st.booleans(),
        claims=st.integers(0, 3),
        query_params=st.none() | query_params(),
        progress=st.none() | st.floats(0, 100),
        provider_status=st.none() | names(),
        last_observation=st.none() | observations,
        result_expires_at=maybe_at,
        result_gone=st.booleans(),
        error=st.none() | failures(),
        usage=st.none() | usages(),
        resources=resources(),
        submit_attempts=counts,
        not_sent_count=counts,
        query_count=counts,
        consecutive_errors=counts,
        not_found_count=counts,
        lookup_misses=st.integers(0, 2),
        cancel_tries=st.integers(0, 3),
        notes=st.lists(st.text(_NAME_TEXT, max_size=30), max_size=10).map(tuple),
        unknown_fields=st.dictionaries(
            st.from_regex(r"x_[a-z]{1,8}", fullmatch=True), json_values(3), max_size=2
        ),
    )
