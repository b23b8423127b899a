"""``local()``: a store, a manager and a worker in one ``with`` block, for scripts and notebooks.

Everything here is put together from the other modules; nothing is decided. The worker runs in a thread of
this process and ends with the block: a task in a file goes on when the file is opened again, one in memory
does not.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self

from coatcheck.accounts import Accounts, Source
from coatcheck.errors import CoatcheckError, ConfigError, WaitTimeoutError
from coatcheck.manager import Manager, error_of, read_patience
from coatcheck.model import Limit, Task, TaskStatus, WaitReason
from coatcheck.plugins import load_plugins
from coatcheck.registry import Registry
from coatcheck.selector import Selector
from coatcheck.store import Explanation, Store
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.transport import Transport
from coatcheck.worker import Worker, WorkerSettings

_log = logging.getLogger(__name__)

#: How long the end of the block waits for steps under way; a script should end soon after its last line.
GRACE = timedelta(seconds=5)
#: How often a waiting call looks whether the worker is still there.
_LOOK = timedelta(seconds=1)


class Local:
    """What ``local()`` returns: use it in a ``with`` block, or between ``start`` and ``close``."""

    def __init__(self, manager: Manager, worker: Worker, owned: Iterable[Any] = ()) -> None:
        self.manager = manager
        self.worker = worker
        self._owned = tuple(owned)
        self._thread = threading.Thread(target=self._work, name="coatcheck-local", daemon=True)
        self._problem: BaseException | None = None

    @property
    def store(self) -> Store:
        """The store."""
        return self.manager.store

    @property
    def registry(self) -> Registry:
        """The registry; handlers may still be added."""
        return self.manager.registry

    def submit(self, request: object, **options: Any) -> Task:
        """Store a task, which the worker inside takes at once; see ``Manager.submit``."""
        return self.manager.submit(request, **options)

    def run(self, request: object, *, timeout: timedelta | float | None = None, **options: Any) -> Any:
        """Submit a request, wait for its end and return its result.

        Args:
            request: an instance of a registered request type.
            timeout: patience; by default as long as the task's deadline allows.
            options: as for ``Manager.submit``.

        Raises:
            RequestError: the request was refused; nothing was stored.
            ConfigError: outside of the ``with`` block; nothing was stored.
            TaskError: the task ended otherwise than SUCCEEDED, or the patience ended first; see
                ``Manager.result``.
        """
        patience = read_patience(timeout)
        if not self._thread.is_alive():
            raise self._not_running() from self._problem
        return self.result(self.submit(request, **options).id, patience)

    def result(self, task_id: str, timeout: timedelta | float | None = None) -> Any:
        """Wait for a task's end and return its result; see ``Manager.result``."""
        task = self.wait(task_id, timeout)
        if task.status is TaskStatus.SUCCEEDED:
            return task.result
        raise error_of(task)

    def wait(self, task_id: str, timeout: timedelta | float | None = None) -> Task:
        """Wait for a task's end and return the task; see ``Manager.wait``.

        Raises:
            CoatcheckError: the worker inside is not running, so the task would never end.
        """
        patience = read_patience(timeout)
        end = None if patience is None else time.monotonic() + patience.total_seconds()
        told: set[WaitReason] = set()

        def complain(why: Explanation) -> None:
            # In its first moments the worker inside has not said yet which handlers it has.
            if why.reason is not WaitReason.NO_HANDLER and why.reason not in told:
                told.add(why.reason)
                _log.warning("task %s waits: %s", task_id, why.message)

        while True:
            left = None if end is None else timedelta(seconds=max(0.0, end - time.monotonic()))
            slice_ = _LOOK if left is None else min(left, _LOOK)
            try:
                return self.manager.wait(task_id, slice_, on_waiting=complain)
            except WaitTimeoutError:
                if left is not None and left <= _LOOK:
                    raise
                if not self._thread.is_alive():
                    raise self._not_running() from self._problem

    def _not_running(self) -> CoatcheckError:
        if self._problem is not None:
            return CoatcheckError(f"the worker inside ended: {self._problem}")
        return ConfigError(
            "the worker inside is not running; use `with coatcheck.local() as c:`, or call start() first"
        )

    def start(self) -> Self:
        """Start the worker; once. ``close`` ends it.

        Raises:
            ConfigError: it was started before.
        """
        if self._thread.ident is not None:
            raise ConfigError("this was started before; call coatcheck.local() again for a new one")
        self._thread.start()
        return self

    def close(self) -> None:
        """Let the worker finish what it began, within its grace, and close everything. Repeatable."""
        self.worker.stop()
        try:
            self._join()
        except KeyboardInterrupt:
            # The second Ctrl-C: no grace any more, but an end that leaves nothing half written.
            self.worker.stop()
            self._join()
            raise
        finally:
            self.manager.close()
            for owned in self._owned:
                owned.close()

    def _join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        try:
            self.worker.run(stop_signals=False)
        except BaseException as problem:  # noqa: BLE001  # told to whoever waits
            _log.error("the worker of coatcheck.local() ended", exc_info=problem)
            self._problem = problem


def local(
    path: str | os.PathLike[str] = ":memory:",
    *,
    handlers: Iterable[Any] = (),
    plugins: bool = True,
    accounts: Accounts | Mapping[str, Mapping[str, Source]] | None = None,
    selector: Selector | None = None,
    transport: Transport | None = None,
    limits: Iterable[Limit] = (),
    namespace: str = "default",
    settings: WorkerSettings | None = None,
) -> Local:
    """Open a store with a manager and a worker over it, to be used in a ``with`` block.

    ``with coatcheck.local() as c: print(c.run(request))``. Settings files and variables are not read, those
    of accounts excepted.

    Args:
        path: the store's SQLite file; by default memory, which is gone with the block.
        handlers: handlers to register beside those of the plugins.
        plugins: whether installed plugins are loaded.
        accounts: credentials, as ``Accounts`` or as its table.
        selector: chooses where several handlers accept a request.
        transport: performs HTTP calls; stays the caller's to close. By default one over ``requests``.
        limits: set in the store at the start.
        namespace: the part of the file to use.
        settings: of the worker; by default its own with a grace of 5 s.

    Raises:
        ConfigError: a handler, an account, a limit or the path cannot be used.
    """
    registry = Registry()
    loaded = load_plugins(registry) if plugins else None
    for handler in handlers:
        registry.add_handler(handler)
    store = SqliteStore(os.fspath(path), namespace=namespace)
    manager = Manager(
        store,
        registry,
        accounts=accounts if isinstance(accounts, Accounts) else Accounts(accounts),
        selector=selector,
        transport=transport,
        plugins=loaded,
    )
    worker = Worker(
        store,
        registry,
        accounts=manager.accounts,
        transport=manager.transport,
        plugins=loaded,
        settings=WorkerSettings(grace=GRACE) if settings is None else settings,
    )
    manager.set_limits(*limits)
    return Local(manager, worker, owned=[store])
