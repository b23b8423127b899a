"""How much a worker may claim, from what it holds."""

from datetime import UTC, datetime

from coatcheck.model import Task, TaskStatus
from coatcheck.store import Kind, Lease, Room, Row, Stored
from coatcheck.worker.held import Held, Item

NOW = datetime(2031, 1, 1, tzinfo=UTC)


def lease_of(number: int, provider: str = "a", claims: int = 1) -> Lease:
    """Return a lease of a running task of some provider."""
    task = Task(
        id=f"task-{number}",
        status=TaskStatus.RUNNING,
        handler_key=f"{provider}:x",
        provider_key=provider,
        account="default",
        created_at=NOW,
        scheduled_at=NOW,
        deadline_at=NOW,
        updated_at=NOW,
        claims=claims,
    )
    row = Row(**{name: task.__dict__[name] for name in Row.__annotations__})
    return Lease(
        kind=Kind.QUERY,
        stored=Stored(row=row, format=1, record=b"{}"),
        token=f"token-{number}",
        expires_at=NOW,
    )


def held_of(**changes: int) -> Held:
    """Return what holds nothing yet: 8 threads, 6 for each provider."""
    values = {"room": 100, "threads": 8, "default_bound": 6, "async_calls": 50, **changes}
    return Held(bounds={"slow": 2}, **values)


def hold(held: Held, provider: str, count: int, claims: int = 1) -> list[Item]:
    """Hold that many steps of a provider."""
    items = []
    for _ in range(count):
        number = len(held)
        items.append(
            Item(
                lease_of(number + 1000 * len(provider), provider, claims), held.lane(provider), NOW, 0.0, 0.0
            )
        )
        held.add(items[-1])
    return items


def test_an_empty_worker_has_room_for_its_threads() -> None:
    """Nothing is fetched ahead before it is known how fast steps end."""
    room = held_of().room(1.0)
    assert (room.total, room.of("anything"), room.of("slow"), room.is_idle) == (8, 6, 2, True)


def test_a_provider_never_gets_more_than_its_bound() -> None:
    """A vendor that hangs keeps its own places, and leaves the rest of the threads to the others."""
    held = held_of()
    hold(held, "a", 6)
    room = held.room(1.0)
    assert (room.of("a"), room.of("b"), room.total, room.is_idle) == (0, 6, 2, False)


def test_steps_are_fetched_ahead_at_the_pace_at_which_they_end() -> None:
    """A quick vendor finds its next steps waiting; a vendor that has come to a stop gets nothing ahead."""
    held = held_of()
    for tenth in range(20):
        for item in hold(held, "quick", 6):
            held.drop(item)
        held.lane("quick").ended += 94  # 1,000 a second
        held.room(1.0 + tenth / 10)
    hold(held, "quick", 6)
    assert held.room(2.91).of("quick") > 15
    assert held.room(10.0).of("quick") == 0


def test_a_step_that_is_given_back_is_not_fetched_again_for_its_own_sake() -> None:
    """Steps that waited too long here are for other workers: giving them back is no pace."""
    held = held_of()
    items = hold(held, "a", 46)
    held.room(1.0)
    for item in items[6:]:
        held.drop(item, has_ended=False)
    assert held.room(1.001).of("a") == 0


def test_what_is_fetched_ahead_takes_no_place_from_another_provider() -> None:
    """Steps that wait behind a vendor that began to hang do not count as running ones."""
    held = held_of()
    hold(held, "a", 40)
    room = held.room(1.0)
    assert (room.of("a"), room.total) == (0, 2)


def test_the_room_is_a_bound_for_everything() -> None:
    """However many providers there are, no more than the room is held."""
    held = held_of(room=10)
    hold(held, "a", 9)
    assert held.room(1.0).total == 1


def test_calls_that_were_given_up_keep_their_providers_room() -> None:
    """A call that hangs beyond its limit still is one of its provider's calls, and no other's."""
    held = held_of()
    items = hold(held, "a", 6)
    for item in items[:4]:
        held.drop(item)
        held.lane("a").stuck += 1
    room = held.room(100.0)
    assert (room.of("a"), room.of("b"), room.total) == (0, 6, 6)


def test_async_handlers_have_a_bound_of_their_own() -> None:
    """Calls on the event loop take no thread."""
    held = held_of()
    held.async_providers = frozenset({"loop"})
    room = held.room(1.0)
    assert (room.of("loop"), room.of("a"), room.total) == (50, 6, 58)


def test_a_step_that_is_let_go_of_twice_counts_once() -> None:
    """Occupancy is counted from what is held, never by adding and subtracting on trust (F53)."""
    held = held_of()
    (item,) = hold(held, "a", 1)
    held.drop(item)
    held.drop(item)
    assert (len(held), held.lane("a").held) == (0, 0)


def test_a_suspect_is_held_alone() -> None:
    """While a task that killed two workers is held, nothing else may be claimed."""
    held = held_of()
    (suspect,) = hold(held, "a", 1, claims=3)
    assert held.is_alone
    held.drop(suspect)
    assert not held.is_alone


def test_a_claim_that_took_all_there_was_room_for_is_remembered() -> None:
    """Only then does the end of a step make a claim worth while."""
    held = held_of()
    held.note_claim(Room(total=8, per_provider={"a": 6}), [lease_of(1), lease_of(2)])
    assert not held.was_tight
    held.note_claim(Room(total=8, per_provider={"a": 2}), [lease_of(1), lease_of(2)])
    assert held.was_tight
    held.note_claim(Room(total=1, per_provider={"a": 6}), [lease_of(1)])
    assert held.was_tight
    held.note_claim(Room(total=4, per_provider={"a": 0}), [])
    assert not held.was_tight
    held.lane("a")
    held.note_claim(Room(total=4, per_provider={"a": 0}), [])
    assert held.was_tight


def test_providers_that_came_and_went_are_forgotten() -> None:
    """A provider key per customer does not fill the memory (F87)."""
    held = held_of()
    for number in range(1000):
        (item,) = hold(held, f"customer-{number}", 1)
        held.drop(item)
        held.room(float(number))
    assert len(held.lanes) < 300


def test_each_question_about_a_step_is_answered_once() -> None:
    """The thread and the main loop cannot both begin, or both end, the same step."""
    item = Item(lease_of(1), None, NOW, 0.0, 0.0)
    assert [item.begin(), item.begin(), item.settle(), item.settle()] == [True, False, True, False]
