"""Every hook that a plugin may implement, with what coatcheck promises about the call.

A plugin is a module with ``coatcheck_api = 1`` and functions marked with ``coatcheck.hookimpl``, named by an
entry point of the group "coatcheck". An implementation may take fewer arguments than its spec. Only models
and protocols are mentioned here.
"""

from datetime import timedelta
from typing import Any

import pluggy

from coatcheck.model import SubmitOptions, TaskChange
from coatcheck.registry import Registry

#: The name of the project for pluggy, of the group of entry points, and the prefix of all hooks.
PROJECT = "coatcheck"
#: The version of the plugin door; plugins state it as ``coatcheck_api``.
API = 1

hookspec = pluggy.HookspecMarker(PROJECT)
#: Marks a function of a plugin as the implementation of the hook with the same name.
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def coatcheck_register_handlers(registry: Registry) -> None:
    """Register handlers: ``registry.add_handler(MyHandler())``.

    Called once per registry, when the plugin is loaded. If it raises, all that the plugin registered is taken
    back and the plugin is reported as failed.
    """


@hookspec
def coatcheck_register_selectors(registry: Registry) -> None:
    """Register selectors, ``registry.add_selector("cheapest", make_cheapest)``; called as for handlers."""


@hookspec
def coatcheck_register_stores(registry: Registry) -> None:
    """Register stores, ``registry.add_store("redis", open_redis)``; called as for handlers."""


@hookspec
def coatcheck_register_transports(registry: Registry) -> None:
    """Register transports, ``registry.add_transport("fast", FastTransport)``; called as for handlers."""


@hookspec
def coatcheck_register_commands(registry: Registry) -> None:
    """Register commands, ``registry.add_command(a_click_command)``; called as for handlers."""


@hookspec
def coatcheck_register_sandboxes(registry: Registry) -> None:
    """Register local vendors for development, ``registry.add_sandbox("vendor:operation", VendorSandbox)``.

    The name is the handler's key; what is made speaks the vendor's protocol in ``coatcheck sandbox``. Called
    as for handlers.
    """


@hookspec
def coatcheck_task_changed(change: TaskChange) -> None:
    """Hear that a task was added, changed its status or began a new generation.

    Called in the process that wrote the change, after the write, in the writing thread: be quick. It may be
    missed when that process dies, and may come twice. What it raises is logged and stops nothing.
    """


@hookspec
def coatcheck_admit(request: Any, options: SubmitOptions) -> timedelta | None:
    """Have a say before a task is stored.

    Called by the submitter, once per submit that passed all checks. Return ``None`` for no objection or a
    timedelta to delay the submit (the longest of all plugins counts, and never less than ``options.delay``);
    raise a ``RequestError`` to refuse it. Any other exception refuses it too, as a ``PluginError``.
    """
