"""Submitting: which handler takes a request, what is refused before anything is stored, and dedupe."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest
import requests
from tests.core.manager_house import House, Job, Other, Vendor, build

from coatcheck import hookspecs, selector
from coatcheck.errors import (
    AmbiguousHandlerError,
    ConfigError,
    DedupeConflictError,
    HandlerError,
    NoHandlerError,
    NotPersistableError,
    PayloadTooLargeError,
    RequestError,
    StoreUnavailableError,
    UnknownNameError,
    ValidationError,
)
from coatcheck.model import QueryParams, QueryResult, SubmitOptions, SubmitResult, TaskChange, TaskStatus
from coatcheck.plugins import load_plugins
from coatcheck.registry import Registry
from coatcheck.selector import Candidate, SelectorContext
from coatcheck.store import Added, NewTask


@pytest.fixture
def house() -> Iterator[House]:
    """Yield a manager with one handler."""
    made = build()
    yield made
    made.store.close()


def test_submit_stores_a_pending_task_with_the_handlers_defaults(house: House) -> None:
    """A submit needs the request and nothing else."""
    task = house.manager.submit(Job("x"))
    assert task == house.manager.get(task.id)
    assert (task.status, task.handler_key, task.provider_key, task.account) == (
        TaskStatus.PENDING_SUBMIT,
        "acme:job",
        "acme:job",
        "default",
    )
    assert (task.tenant, task.priority, task.request_type) == ("", 0, "test.manager.job")
    assert task.idempotency_key == task.id
    assert task.created_at == task.scheduled_at == house.clock()
    assert task.deadline_at == house.clock() + timedelta(hours=24)
    assert not task.is_replay


def test_options_are_kept(house: House) -> None:
    """Every option reaches the record."""
    run_at = house.clock() + timedelta(hours=1)
    task = house.manager.submit(
        Job(),
        provider_key="acme",
        account="second",
        tenant="t-1",
        priority=7,
        run_at=run_at,
        deadline=timedelta(hours=2),
        queue_deadline=timedelta(minutes=5),
        stall_limit=timedelta(minutes=1),
        metadata={"order": 5},
        dedupe_key="d",
        idempotency_key="i",
        cancel_on_deadline=True,
    )
    task = house.manager.get(task.id)
    assert (task.provider_key, task.account, task.tenant, task.priority) == ("acme", "second", "t-1", 7)
    assert (task.scheduled_at, task.deadline_at) == (run_at, run_at + timedelta(hours=2))
    assert task.queue_deadline_at == run_at + timedelta(minutes=5)
    assert task.stall_limit == timedelta(minutes=1)
    assert task.metadata == {"order": 5}
    assert (task.dedupe_key, task.idempotency_key, task.cancel_on_deadline) == ("d", "i", True)


def test_keywords_win_over_the_options_object(house: House) -> None:
    """A set of options is prepared once and varied by call."""
    options = SubmitOptions(tenant="a", priority=1)
    task = house.manager.submit(Job(), options, tenant="b")
    assert (task.tenant, task.priority) == ("b", 1)


def test_ids_rise_with_time_and_are_unique(house: House) -> None:
    """Later ids sort later, which keeps the store's indexes compact."""
    ids = [house.manager.submit(Job()).id for _ in range(50)]
    assert len(set(ids)) == 50
    assert [i[:8] for i in ids] == sorted(i[:8] for i in ids)


# Routing.


def test_request_goes_to_the_handler_of_its_exact_type(house: House) -> None:
    """Neither a base class nor a subclass of the accepted type is accepted."""

    @attrs.frozen
    class Special(Job):
        pass

    with pytest.raises(NotPersistableError, match="persistent"):
        house.manager.submit(Special())
    assert house.count() == 0


def test_registered_type_without_handler_is_refused(house: House) -> None:
    """A type that nobody takes is named."""
    with pytest.raises(NoHandlerError, match="Other, found none"):
        house.manager.submit(Other())
    assert house.count() == 0


def test_handler_key_of_another_type_is_refused(house: House) -> None:
    """An explicit handler does not get a request that it cannot read."""
    with pytest.raises(ValidationError, match="accepts Job, found a Other"):
        house.manager.submit(Other(), handler_key="acme:job")
    with pytest.raises(UnknownNameError, match="did you mean 'acme:job'"):
        house.manager.submit(Job(), handler_key="acme:jbo")
    assert house.count() == 0


def test_several_handlers_without_a_selector_are_ambiguous() -> None:
    """Nothing is chosen by chance; the message lists the keys."""
    house = build(Vendor("a"), Vendor("b"))
    with pytest.raises(AmbiguousHandlerError, match="found 2: a, b") as caught:
        house.manager.submit(Job())
    assert caught.value.keys == ("a", "b")
    assert house.count() == 0
    assert house.manager.submit(Job(), handler_key="b").handler_key == "b"
    house.store.close()


class Recorder:
    """A selector that remembers what it was asked."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[SelectorContext] = []
        self.answer = answer

    def select(self, context: SelectorContext) -> Candidate:
        """Choose the first, or what the test wants."""
        self.asked.append(context)
        return context.candidates[0] if self.answer is None else self.answer


def test_selector_is_asked_only_where_there_is_a_choice() -> None:
    """One candidate or an explicit key leaves nothing to choose."""
    recorder = Recorder()
    single = build(selector=recorder)
    single.manager.submit(Job())
    house = build(Vendor("b"), Vendor("a"), selector=recorder)
    house.manager.submit(Job(), handler_key="b")
    assert recorder.asked == []
    assert house.manager.submit(Job("x"), tenant="t").handler_key == "a"
    (context,) = recorder.asked
    assert context.keys == ("a", "b")
    assert (context.request, context.options.tenant) == (Job("x"), "t")
    single.store.close()
    house.store.close()


def test_choice_is_stored_with_the_task() -> None:
    """Workers never choose again."""
    house = build(Vendor("a"), Vendor("b"), selector=selector.round_robin())
    keys = [house.manager.submit(Job()).handler_key for _ in range(4)]
    assert keys == ["a", "b", "a", "b"]
    house.store.close()


def test_replay_uses_no_turn_of_the_selector() -> None:
    """The store is asked for a replay first, and the replay keeps its handler."""
    house = build(Vendor("a"), Vendor("b"), selector=selector.round_robin())
    first = house.manager.submit(Job(), dedupe_key="k")
    replays = [house.manager.submit(Job(), dedupe_key="k") for _ in range(3)]
    assert {replay.id for replay in replays} == {first.id}
    assert {replay.handler_key for replay in replays} == {"a"}
    assert house.manager.submit(Job()).handler_key == "b"
    house.store.close()


# Bad input.


class Client:
    """Something that holds a connection."""

    def close(self) -> None:
        """Close it."""


def _bad_values(file: Path) -> dict[str, Any]:
    return {
        "bytes": b"%PDF",
        "bytearray": bytearray(b"%PDF"),
        "path": file,
        "text of a local path": str(file),
        "file url": file.as_uri(),
        "nested path": {"pages": [{"source": file}]},
        "nested bytes": [[b"x"]],
        "client": Client(),
        "session": requests.Session(),
        "lock": threading.Lock(),
        "function": lambda: 1,
        "class": Job,
        "naive datetime": datetime(2030, 1, 1),  # noqa: DTZ001  # the naive one is the point
        "not a number": float("nan"),
        "set": {1},
        "keys that are no texts": {1: "a"},
        "unregistered": attrs.make_class("Loose", ["x"])(1),
    }


@pytest.mark.parametrize("name", sorted(_bad_values(Path("/scan.pdf"))))
def test_what_another_machine_could_not_restore_is_refused_with_its_place(
    house: House, tmp_path: Path, name: str
) -> None:
    """At any depth; the message leads there and says what to do, and nothing is stored."""
    file = tmp_path / "scan.pdf"
    file.write_bytes(b"%PDF")
    with pytest.raises(NotPersistableError, match=r"request\.extra.* holds .*; .+") as caught:
        house.manager.submit(Job(extra=_bad_values(file)[name]))
    assert caught.value.path.startswith("request.extra")
    assert house.count() == 0


def test_open_files_are_refused_with_the_advice_to_upload(house: House, tmp_path: Path) -> None:
    """A file handle means nothing on the worker's machine."""
    path = tmp_path / "a.txt"
    path.write_text("x", "utf-8")
    with path.open("rb") as file, pytest.raises(NotPersistableError, match="upload it first"):
        house.manager.submit(Job(extra={"body": file}))
    with path.open("rb") as file, pytest.raises(NotPersistableError, match="open file"):
        house.manager.submit(file)
    with path.open("rb") as file, pytest.raises(NotPersistableError, match=r"metadata.*open file"):
        house.manager.submit(Job(), metadata={"body": file})
    assert house.count() == 0


@pytest.mark.parametrize("request_", [{"url": "x"}, "https://example.com", b"x", None, 5, Job, Client()])
def test_whatever_is_no_registered_request_is_refused(house: House, request_: object) -> None:
    """A dict, a text, a class or a client in place of a request gets a message of its own."""
    with pytest.raises(NotPersistableError, match="request holds"):
        house.manager.submit(request_)
    assert house.count() == 0


def test_local_files_reach_only_a_handler_that_reads_them(tmp_path: Path) -> None:
    """``file://`` URLs are for handlers on this machine, and only where the file is readable."""
    path = tmp_path / "a.txt"
    path.write_text("x", "utf-8")
    house = build(Vendor(local_files=True))
    assert house.manager.submit(Job(extra=path.as_uri())).status is TaskStatus.PENDING_SUBMIT
    with pytest.raises(NotPersistableError, match="cannot be read here"):
        house.manager.submit(Job(extra=(tmp_path / "missing").as_uri()))
    assert house.count() == 1
    house.store.close()


#: Values that no limit takes, for the matrix of None, zero, negative, quoted and huge ones.
BAD = {
    "zero": timedelta(),
    "negative": timedelta(seconds=-1),
    "number": 5,
    "text": "5",
    "huge": timedelta(days=10**6),
}


@pytest.mark.parametrize("bad", sorted(BAD))
@pytest.mark.parametrize("option", ["deadline", "queue_deadline", "stall_limit", "delay"])
def test_bad_durations_are_refused(house: House, option: str, bad: str) -> None:
    """Zero has a meaning for ``delay`` only: no delay."""
    options: dict[str, Any] = {option: BAD[bad]}
    if (option, bad) == ("delay", "zero"):
        assert house.manager.submit(Job(), **options).scheduled_at == house.clock()
        return
    with pytest.raises(ValidationError, match=f"{option} must be .*timedelta"):
        house.manager.submit(Job(), **options)
    assert house.count() == 0


@pytest.mark.parametrize("option", ["deadline", "delay", "priority", "tenant", "metadata", "on_duplicate"])
def test_none_is_refused_where_it_has_no_meaning(house: House, option: str) -> None:
    """``None`` never means "the default"; leave the option out for that."""
    options: dict[str, Any] = {option: None}
    with pytest.raises(ValidationError, match=option):
        house.manager.submit(Job(), **options)
    assert house.count() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 1001},
        {"priority": -1001},
        {"priority": "5"},
        {"priority": 1.0},
        {"priority": True},
        {"tenant": "a\nb"},
        {"tenant": "x" * 201},
        {"account": ""},
        {"dedupe_key": " "},
        {"idempotency_key": 5},
        {"on_duplicate": "replace"},
        {"cancel_on_deadline": "yes"},
        {"metadata": [1]},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001  # the naive one is the point
        {"run_at": "2030-01-01"},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": timedelta(1)},
        {"charge": 5},
    ],
    ids=str,
)
def test_bad_options_are_refused(house: House, options: dict[str, Any]) -> None:
    """Each message names the option."""
    with pytest.raises(ValidationError, match=next(iter(options))):
        house.manager.submit(Job(), **options)
    assert house.count() == 0


def test_unknown_option_is_refused_with_the_closest_name(house: House) -> None:
    """A misspelt option would otherwise be a limit that does not hold."""
    with pytest.raises(UnknownNameError, match="did you mean 'deadline'"):
        house.manager.submit(Job(), dedline=timedelta(1))
    with pytest.raises(UnknownNameError, match="did you mean 'deadline'"):
        house.manager.submit(Job(), SubmitOptions(), dedline=timedelta(1))
    with pytest.raises(ValidationError, match="options must be SubmitOptions, found dict"):
        house.manager.submit(Job(), {"tenant": "a"})  # type: ignore[arg-type]  # the wrong type is the point
    assert house.count() == 0


def test_oversized_payloads_are_refused_whole(house: House) -> None:
    """A request or metadata over its cap is no task; nothing is cut."""
    with pytest.raises(PayloadTooLargeError, match="params may take"):
        house.manager.submit(Job(name="x" * 256 * 1024))
    with pytest.raises(PayloadTooLargeError, match="metadata may take"):
        house.manager.submit(Job(), metadata={"a": "x" * 16 * 1024})
    assert house.count() == 0


def test_handlers_own_validation_refuses_before_the_store(house: House) -> None:
    """What ``validate`` refuses is not stored; what breaks in it is an error that names the handler."""
    with pytest.raises(ValidationError, match="may not be 'refused'"):
        house.manager.submit(Job("refused"))
    with pytest.raises(HandlerError, match=r"acme:job\.validate failed with KeyError"):
        house.manager.submit(Job("broken"))
    assert house.count() == 0


def test_metadata_is_a_copy(house: House) -> None:
    """What the caller does to its dict afterwards does not reach the task."""
    metadata = {"tags": ["a"]}
    task = house.manager.submit(Job(), metadata=metadata)
    metadata["tags"].append("b")
    assert house.manager.get(task.id).metadata == {"tags": ["a"]}


# Time.


@pytest.mark.parametrize("zone", ["Australia/Sydney", "Pacific/Auckland", "Europe/London"])
@pytest.mark.parametrize("fold", [0, 1])
def test_run_at_is_an_instant_in_any_zone(house: House, zone: str, fold: int) -> None:
    """At the gap and the fold of summer time an aware time is one instant (F71)."""
    for moment in (datetime(2032, 4, 4, 2, 30), datetime(2032, 10, 3, 2, 30), datetime(2032, 3, 28, 1, 30)):  # noqa: DTZ001  # gets its zone below
        local = moment.replace(tzinfo=ZoneInfo(zone), fold=fold)
        assert house.manager.submit(Job(), run_at=local).scheduled_at == local.astimezone(UTC)


def test_run_at_with_an_offset_is_kept_in_utc(house: House) -> None:
    """Times come back as UTC, whatever they were given in."""
    at = (house.clock() + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5, minutes=30)))
    task = house.manager.get(house.manager.submit(Job(), run_at=at).id)
    assert task.scheduled_at == at
    assert task.scheduled_at.utcoffset() == timedelta()


def test_run_at_in_the_past_means_now(house: House) -> None:
    """The deadline counts from now then, not from the past."""
    task = house.manager.submit(Job(), run_at=house.clock() - timedelta(days=2))
    assert task.scheduled_at == house.clock()
    assert task.deadline_at == house.clock() + timedelta(hours=24)


# Dedupe.


def test_same_key_and_request_is_the_same_task_in_any_state(house: House) -> None:
    """A repeat returns the first task, marked as a replay."""
    first = house.manager.submit(Job(), dedupe_key="k")
    assert house.manager.submit(Job(), dedupe_key="k").is_replay
    house.work(2)
    again = house.manager.submit(Job(), dedupe_key="k", priority=5)
    assert (again.id, again.is_replay, again.status) == (first.id, True, TaskStatus.SUCCEEDED)
    assert len(house.vendor.submits) == 1
    assert not house.manager.get(first.id).is_replay


def test_another_request_under_the_key_is_a_conflict(house: House) -> None:
    """A key names one request; the conflict names the task that has it."""
    first = house.manager.submit(Job("x"), dedupe_key="k")
    with pytest.raises(DedupeConflictError, match=first.id) as caught:
        house.manager.submit(Job("y"), dedupe_key="k")
    assert (caught.value.task_id, caught.value.dedupe_key) == (first.id, "k")
    assert house.count() == 1


def test_dedupe_keys_belong_to_tenants(house: House) -> None:
    """Two tenants may use the same key (F34)."""
    tasks = [house.manager.submit(Job(), dedupe_key="k", tenant=tenant) for tenant in ("a", "b", "")]
    assert len({task.id for task in tasks}) == 3


def test_twenty_parallel_submits_with_one_key_are_one_task(house: House) -> None:
    """The key is checked by the store in one step, not by looking first (F34)."""
    with ThreadPoolExecutor(20) as pool:
        tasks = list(pool.map(lambda _: house.manager.submit(Job(), dedupe_key="k"), range(20)))
    assert len({task.id for task in tasks}) == 1
    assert sum(not task.is_replay for task in tasks) == 1
    house.work(2)
    assert len(house.vendor.submits) == 1


def test_retry_failed_starts_a_new_generation_of_a_failed_task(house: House) -> None:
    """``on_duplicate="retry_failed"`` retries what the vendor failed, and only that."""
    house.vendor.query_answer = QueryResult.failed("bad", "bad scan")
    first = house.manager.submit(Job(), dedupe_key="k")
    house.work(2)
    assert house.manager.get(first.id).status is TaskStatus.FAILED
    assert house.manager.submit(Job(), dedupe_key="k").status is TaskStatus.FAILED
    again = house.manager.submit(Job(), dedupe_key="k", on_duplicate="retry_failed")
    assert (again.id, again.is_replay) == (first.id, True)
    assert (again.status, again.generation) == (TaskStatus.PENDING_SUBMIT, 2)
    house.vendor.query_answer = QueryResult.running(5)
    house.work(2)
    running = house.manager.submit(Job(), dedupe_key="k", on_duplicate="retry_failed")
    assert (running.status, running.generation) == (TaskStatus.RUNNING, 2)


def test_retry_failed_leaves_a_job_that_may_still_run(house: House) -> None:
    """A job whose end nobody saw may still run: only an explicit retry makes a second one."""
    house.vendor.query_answer = ValueError("no answer")
    house.vendor.poll = attrs.evolve(house.vendor.poll, max_errors=1)
    first = house.manager.submit(Job(), dedupe_key="k")
    house.work(2)
    assert house.manager.get(first.id).error is not None
    again = house.manager.submit(Job(), dedupe_key="k", on_duplicate="retry_failed")
    assert (again.status, again.generation) == (TaskStatus.FAILED, 1)


def test_dedupe_ignores_fields_that_are_equal_to_their_default(house: House) -> None:
    """A new field with a default does not make old keys conflict."""
    first = house.manager.submit(Job("x"), dedupe_key="k")
    assert house.manager.submit(Job("x", size=None), dedupe_key="k").id == first.id


# Stores that answer late.


class LosesReplies:
    """A store whose first answer to ``add`` is lost on the way."""

    def __init__(self, house: House, losses: int) -> None:
        self._add = house.store.add
        self.losses = losses
        self.calls = 0

    def add(self, tasks: list[NewTask]) -> list[Added]:
        """Store, then maybe lose the reply."""
        self.calls += 1
        answer = list(self._add(tasks))
        if self.calls <= self.losses:
            raise StoreUnavailableError("no reply")
        return answer


def test_lost_reply_of_the_store_makes_no_second_task(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding the same id again settles whether the first call was stored (G1)."""
    flaky = LosesReplies(house, 1)
    monkeypatch.setattr(house.store, "add", flaky.add)
    task = house.manager.submit(Job())
    assert (flaky.calls, house.count(), task.status) == (2, 1, TaskStatus.PENDING_SUBMIT)


def test_store_that_stays_away_is_an_error_of_the_submit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller learns that the outcome is not known."""
    monkeypatch.setattr(house.store, "add", LosesReplies(house, 2).add)
    with pytest.raises(StoreUnavailableError):
        house.manager.submit(Job())


# Hooks.


class Doorkeeper:
    """A plugin that delays, refuses and listens."""

    coatcheck_api = 1

    def __init__(self) -> None:
        self.changes: list[TaskChange] = []
        self.asked = 0

    @hookspecs.hookimpl
    def coatcheck_admit(self, request: Any, options: SubmitOptions) -> timedelta | None:
        """Delay big jobs, refuse bad ones."""
        self.asked += 1
        if request.name == "no":
            raise RequestError("closed on Sundays")
        return timedelta(minutes=5) if request.name == "later" else None

    @hookspecs.hookimpl
    def coatcheck_task_changed(self, change: TaskChange) -> None:
        """Remember."""
        self.changes.append(change)


def test_plugins_may_delay_refuse_and_hear() -> None:
    """The admission hook has its say before anything is stored; observers hear of new tasks."""
    keeper = Doorkeeper()
    plugins = load_plugins(Registry(), extra=[keeper])
    house = build(plugins=plugins)
    with pytest.raises(RequestError, match="closed on Sundays"):
        house.manager.submit(Job("no"))
    assert house.count() == 0
    later = house.manager.submit(Job("later"))
    assert later.scheduled_at == house.clock() + timedelta(minutes=5)
    at = house.clock() + timedelta(hours=1)
    assert house.manager.submit(Job("later"), run_at=at).scheduled_at == at
    soon = house.clock() + timedelta(minutes=1)
    assert house.manager.submit(Job("later"), run_at=soon).scheduled_at == house.clock() + timedelta(
        minutes=5
    )
    assert [(change.from_status, change.to_status) for change in keeper.changes] == [
        (None, TaskStatus.PENDING_SUBMIT)
    ] * 3
    house.store.close()


def test_replay_is_no_change(house: House) -> None:
    """Observers do not hear of a task a second time, and nobody is asked whether it may be stored."""
    keeper = Doorkeeper()
    heard = build(plugins=load_plugins(Registry(), extra=[keeper]))
    for _ in range(3):
        heard.manager.submit(Job(), dedupe_key="k")
    assert (len(keeper.changes), keeper.asked) == (1, 1)
    heard.store.close()


# Processes.


def test_manager_works_after_fork(tmp_path: Path) -> None:
    """A web server forks after the manager was built: children submit and the parent goes on (F70)."""
    from coatcheck.manager import Manager
    from coatcheck.stores.sqlite import SqliteStore

    registry = Registry()
    registry.add_handler(Vendor())
    store = SqliteStore(str(tmp_path / "a.db"))
    manager = Manager(store, registry)
    manager.submit(Job())
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                for number in range(5):
                    task = manager.submit(Job(str(number)))
                    assert manager.get(task.id).id == task.id
            except BaseException:  # noqa: BLE001  # a child reports by its exit code alone
                os._exit(1)
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0, 0, 0]
    manager.submit(Job())
    assert sum(manager.stats().by_status.values()) == 17
    store.close()


def test_submit_answers_of_a_store_are_those_of_its_clock(house: House) -> None:
    """Instants of a task come from the store, never from the submitter's wall clock."""
    task = house.manager.submit(Job())
    assert task.created_at == house.clock()


def test_first_answer_may_be_final(house: House) -> None:
    """A vendor that is done at once is never queried (F32)."""
    house.vendor.submit_answer = SubmitResult.succeeded("text")
    task = house.manager.submit(Job())
    house.work(2)
    assert house.manager.result(task.id, 0) == "text"
    assert house.vendor.queries == []


def test_blank_external_ids_cannot_be_made() -> None:
    """The id that everything hangs on is checked where it is made."""
    with pytest.raises(HandlerError):
        QueryParams(" ")


def test_config_errors_are_no_request_errors() -> None:
    """Callers tell what they did wrong from what is set up wrong."""
    assert not issubclass(UnknownNameError, RequestError)
    assert issubclass(UnknownNameError, ConfigError)
