"""One request, several vendors: each of the five selectors shares videos out among real handlers."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import frozen

import coatcheck
from coatcheck import AmbiguousHandlerError, Manager, Registry, RequestError, TaskStatus
from coatcheck.embedded import Local
from coatcheck.sandbox import Mounts, Server, VendorSandbox
from coatcheck.selector import Selector
from coatcheck.testing.vendor_matrix import PATIENCE, QUICK, SECRET
from coatcheck_video.handler import VideoHandler
from coatcheck_video.model import VideoRequest

#: How many videos each vendor would make if all had the same share.
SHARE = 10
#: More vendors would make the same tests longer.
MOST = 3


@frozen
class Studio:
    """Vendors that listen here, with handlers that take a request of nothing but a prompt."""

    registry: Registry
    sandboxes: Mapping[str, VendorSandbox]
    handlers: tuple[VideoHandler, ...]
    folder: Path

    @property
    def keys(self) -> tuple[str, ...]:
        """The handlers' keys, sorted, as selectors see them."""
        return tuple(sorted(self.sandboxes))

    def house(self, selector: Selector | None) -> Local:
        """Return a house with these handlers and a selector."""
        accounts = {handler.account: {"secret": lambda: SECRET} for handler in self.handlers}
        return coatcheck.local(
            self.folder / "tasks.db",
            plugins=False,
            handlers=self.handlers,
            accounts=accounts,
            selector=selector,
        )


def is_taken(handler: VideoHandler) -> bool:
    """Whether a handler needs to be told no more than a prompt."""
    try:
        handler.validate(VideoRequest(prompt="a"))
    except RequestError:
        return False
    return True


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    """Serve some of the installed vendors that a prompt is enough for."""
    registry = Registry()
    coatcheck.load_plugins(registry)
    found = [resolved.handler for resolved in registry.handlers_for(VideoRequest)]
    able = [handler for handler in found if isinstance(handler, VideoHandler) and is_taken(handler)]
    chosen = able[:MOST]
    with ExitStack() as stack:
        sandboxes: dict[str, VendorSandbox] = {
            handler.key: registry.sandbox(handler.key) for handler in chosen
        }
        for sandbox in sandboxes.values():
            stack.callback(sandbox.close)
        server = stack.enter_context(Server(Mounts(sandboxes)))
        handlers = []
        for handler in chosen:
            said = sandboxes[handler.key].environment(Mounts.url(server.url, handler.key))
            variable = f"COATCHECK_{handler.key.upper().replace(':', '_').replace('-', '_')}_URL"
            here = handler.at(said[variable])
            here.poll = QUICK
            handlers.append(here)
        yield Studio(registry, sandboxes, tuple(handlers), tmp_path)


def counted(studio: Studio, house: Local) -> Selector:
    """Return a selector that asks the store how much every vendor has to do."""
    return studio.registry.selector(
        "least_active", counts=lambda key: len(house.manager.list(handler_key=key).items)
    )


SELECTORS: Mapping[str, Callable[[Studio], Any]] = {
    "round_robin": lambda studio: studio.registry.selector("round_robin"),
    "random": lambda studio: studio.registry.selector("random", rng=Random(1)),
    "weighted": lambda studio: studio.registry.selector(
        "weighted", weights={key: 3 if key == studio.keys[0] else 1 for key in studio.keys}
    ),
    "consistent_hash": lambda studio: studio.registry.selector("consistent_hash", key_of="options.tenant"),
    "least_active": lambda _: None,
}


def check_shares(name: str, studio: Studio, chosen: list[str], total: int) -> None:
    """Check who got how many, as far as the selector promises it."""
    shares, keys = Counter(chosen), studio.keys
    match name:
        case "round_robin":
            assert chosen == [keys[number % len(keys)] for number in range(total)]
        case "least_active":
            assert shares == dict.fromkeys(keys, SHARE)
        case "weighted":
            whole = total // (len(keys) + 2)
            assert abs(shares[keys[0]] - 3 * whole) <= 3
        case _:
            assert len(shares) > 1


@pytest.mark.parametrize("name", SELECTORS)
def test_videos_are_shared_out_and_made_where_they_were_sent(studio: Studio, name: str) -> None:
    """The choice is stored with the task, and the vendor that was chosen has the job."""
    assert len(studio.keys) >= 2
    total = SHARE * len(studio.keys)
    with studio.house(SELECTORS[name](studio)) as house:
        if name == "least_active":
            house.manager = Manager(
                house.store, house.registry, accounts=house.manager.accounts, selector=counted(studio, house)
            )
        tasks = [
            house.submit(VideoRequest(prompt=f"take {number}"), tenant=f"t{number}")
            for number in range(total)
        ]
        ends = [house.wait(task.id, PATIENCE) for task in tasks]
    assert [task.status for task in ends] == [TaskStatus.SUCCEEDED] * total
    assert [task.handler_key for task in ends] == [task.handler_key for task in tasks]
    made = {key: len(sandbox.jobs) for key, sandbox in studio.sandboxes.items()}
    chosen = [task.handler_key for task in tasks]
    assert {key: count for key, count in made.items() if count} == Counter(chosen)
    check_shares(name, studio, chosen, total)


def test_equal_keys_go_to_the_same_vendor_in_every_process(studio: Studio) -> None:
    """A tenant's videos look alike; another manager, made later, knows where they went before."""

    def chosen() -> dict[str, str]:
        with studio.house(SELECTORS["consistent_hash"](studio)) as house:
            return {
                f"t{number}": house.submit(VideoRequest(prompt="a"), tenant=f"t{number}").handler_key
                for number in range(12)
            }

    assert chosen() == chosen()


def test_replay_keeps_its_vendor_and_uses_no_turn(studio: Studio) -> None:
    """Otherwise the second of two equal requests would ask for a second video elsewhere."""
    with studio.house(SELECTORS["round_robin"](studio)) as house:
        request = VideoRequest(prompt="a")
        first, again, second = (house.submit(request, dedupe_key=key) for key in ("one", "one", "two"))
    assert (first.id, first.handler_key) == (again.id, again.handler_key)
    assert [first.handler_key, second.handler_key] == list(studio.keys[:2])


def test_without_a_selector_the_vendors_are_listed(studio: Studio) -> None:
    """Nothing is stored, and a handler_key says which one it is to be."""
    with studio.house(None) as house:
        with pytest.raises(AmbiguousHandlerError) as problem:
            house.submit(VideoRequest(prompt="a"))
        assert problem.value.keys == studio.keys
        assert house.manager.list().items == ()
        last = house.submit(VideoRequest(prompt="a"), handler_key=studio.keys[-1])
        assert last.handler_key == studio.keys[-1]
