"""Hooks as typed methods: nobody else calls pluggy, and no plugin's failure stops another or its host."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pluggy
from attrs import define, field

from coatcheck.errors import PluginError, RequestError
from coatcheck.model import SubmitOptions, Task, TaskChange
from coatcheck.plugins.report import PluginReport

_log = logging.getLogger(__name__)

#: A hook that keeps failing is logged this often.
LOG_EVERY = 60.0


@define(eq=False)
class Plugins:
    """The plugins of one registry, loaded."""

    report: PluginReport
    _manager: pluggy.PluginManager = field(repr=False)
    # Found once: the plugins are fixed when they are loaded, and these are called at every commit.
    _observers: list[tuple[str, Callable[..., Any]]] = field(factory=list, init=False, repr=False)
    _doorkeepers: list[tuple[str, Callable[..., Any]]] = field(factory=list, init=False, repr=False)
    _logged: dict[str, float] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._observers = _one_by_one(self._manager, "coatcheck_task_changed")
        self._doorkeepers = _one_by_one(self._manager, "coatcheck_admit")

    def task_changed(self, before: Task | None, after: Task) -> None:
        """Tell observers what a commit did, if it changed the status or began a generation; never raises.

        Args:
            before: the task as it was; ``None`` for a new one.
            after: the task as it is now.
        """
        if not self._observers:
            return
        if before is not None and (before.status, before.generation) == (after.status, after.generation):
            return
        change = TaskChange.of(before, after)
        for name, call in self._observers:
            try:
                call(change=change)
            except Exception as error:  # noqa: BLE001  # other people's code must not stop a commit (G10)
                self._complain(name, error)

    def _complain(self, name: str, error: Exception) -> None:
        now = time.monotonic()
        if now - self._logged.get(name, -LOG_EVERY) >= LOG_EVERY:
            self._logged[name] = now
            _log.error(
                "plugin %r failed in coatcheck_task_changed; the task is not affected", name, exc_info=error
            )

    def admit(self, request: object, options: SubmitOptions) -> timedelta:
        """Ask plugins about a submit and return the delay that it gets: the longest that was asked for.

        Raises:
            RequestError: a plugin refused the request.
            PluginError: a plugin failed, so the request is refused; nothing was stored.
        """
        delay = options.delay
        for name, call in self._doorkeepers:
            try:
                answers = call(request=request, options=options)
            except RequestError:
                raise
            except Exception as error:
                raise PluginError(
                    f"plugin {name!r} failed in coatcheck_admit with {type(error).__name__}: {error}; "
                    "nothing was stored: repair or disable the plugin",
                    name,
                ) from error
            for answer in answers:  # pluggy leaves None out
                if not isinstance(answer, timedelta):
                    raise PluginError(
                        f"plugin {name!r} must return a timedelta or None from coatcheck_admit, found "
                        f"{answer!r}; nothing was stored: repair or disable the plugin",
                        name,
                    )
                delay = max(delay, answer)
        return delay


def _one_by_one(manager: pluggy.PluginManager, hook: str) -> list[tuple[str, Callable[..., Any]]]:
    """Return a caller for each plugin that has the hook: a common call would end at the first exception."""
    plugins = [implementation.plugin for implementation in getattr(manager.hook, hook).get_hookimpls()]
    everybody = manager.get_plugins()
    return [
        (str(manager.get_name(plugin)), manager.subset_hook_caller(hook, everybody - {plugin}))
        for plugin in plugins
    ]
