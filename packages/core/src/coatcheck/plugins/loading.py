"""Finding and loading plugins: each alone, completely or not at all.

One that cannot be imported, exits, breaks a rule of the door or fails while it registers is taken back and
reported; the others and the host go on. ``strict`` turns the report's faults into an error.
"""

import inspect
import logging
import re
from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import attrs
import pluggy

from coatcheck import hookspecs
from coatcheck.codec import cut
from coatcheck.errors import DuplicateNameError, PluginError, closest
from coatcheck.hookspecs import API, PROJECT
from coatcheck.plugins.calling import Plugins
from coatcheck.plugins.report import PluginInfo, PluginReport, PluginStatus
from coatcheck.registry import Registry

_log = logging.getLogger(__name__)

BUILT_IN = EntryPoint(name="builtin", value="coatcheck.plugins.builtin", group=PROJECT)


def load_plugins(
    registry: Registry, *, disabled: Collection[str] = (), strict: bool = False, extra: Iterable[Any] = ()
) -> Plugins:
    """Load every installed plugin into ``registry`` and return their hooks.

    Core's own comes first, then those of the entry-point group "coatcheck" by name, then ``extra``. Called
    once per registry.

    Args:
        registry: what the plugins register with.
        disabled: names of entry points or distributions whose code is not touched.
        strict: whether to raise when a plugin is broken.
        extra: modules or objects of the application with ``coatcheck_api = 1`` and hooks; loaded like the
            others.

    Raises:
        PluginError: a plugin is broken, with ``strict``; the message names all of them.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    found = sorted(entry_points(group=PROJECT), key=lambda point: (point.name, _origin(point)))
    sources: list[EntryPoint | object] = [BUILT_IN, *found, *extra]
    unwanted = {_canonical(name) for name in disabled}
    _warn_about_unknown(disabled, found)
    report, causes = [], []
    for source in sources:
        info = _describe(source)
        if unwanted & {_canonical(info.name), _canonical(info.distribution)}:
            info = attrs.evolve(info, status=PluginStatus.DISABLED)
            registry.note_missing(info.name, f"It may come with {info}, which is disabled.")
        else:
            cause = _load(manager, registry, source, info)
            if cause is not None:
                causes.append(cause)
                info = attrs.evolve(info, status=PluginStatus.FAILED, error=_in_one_line(cause))
                registry.note_missing(
                    info.name, f"It may come with {info}, which could not be loaded: {info.error}"
                )
                _log.warning("%s could not be loaded: %s", info, info.error)
                _log.debug("%s could not be loaded", info, exc_info=cause)
        report.append(info)
    plugins = Plugins(PluginReport(tuple(report)), manager)
    failed = plugins.report.failed
    if strict and failed:
        listed = "; ".join(f"{info}: {info.error}" for info in failed)
        raise PluginError(
            f"{len(failed)} plugin(s) could not be loaded: {listed}; repair, remove or disable them",
            failed[0].name,
            failed[0].distribution,
        ) from causes[0]
    return plugins


def _load(
    manager: pluggy.PluginManager, registry: Registry, source: EntryPoint | object, info: PluginInfo
) -> BaseException | None:
    """Load one plugin completely, or take it back and return what went wrong."""
    plugin: Any = None
    module = source.module if isinstance(source, EntryPoint) else getattr(source, "__name__", "")
    try:
        with registry.registering(str(info), module):
            plugin = source.load() if isinstance(source, EntryPoint) else source
            _check(manager, plugin, info)
            manager.register(plugin, info.name)
            others = manager.get_plugins() - {plugin}
            for hook in _hooks(manager):
                if hook.startswith("coatcheck_register_"):
                    manager.subset_hook_caller(hook, others)(registry=registry)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # SystemExit too: a plugin may not end its host
        if plugin is not None and manager.get_plugin(info.name) is plugin:
            manager.unregister(plugin)
        return error
    return None


def _hooks(manager: pluggy.PluginManager) -> list[str]:
    return [name for name in vars(hookspecs) if name.startswith("coatcheck_") and hasattr(manager.hook, name)]


def _check(manager: pluggy.PluginManager, plugin: Any, info: PluginInfo) -> None:
    """Refuse what pluggy would accept in silence."""

    def wrong(problem: str) -> PluginError:
        return PluginError(f"{info}: {problem}", info.name, info.distribution)

    found = getattr(plugin, "coatcheck_api", None)
    if found is None:
        raise wrong(f"no coatcheck_api; write coatcheck_api = {API} in {plugin!r}")
    if found != API:
        raise wrong(
            f"coatcheck_api is {found!r}, this coatcheck serves {API}; install matching versions of the two"
        )
    if inspect.isclass(plugin):
        raise wrong(
            f"expected an instance or a module, found the class {plugin.__name__}; have you forgotten the ()?"
        )
    if manager.has_plugin(info.name):
        raise DuplicateNameError.of("plugin", info.name, manager.get_plugin(info.name), plugin)
    known = _hooks(manager)
    for name, value in inspect.getmembers(plugin, inspect.isroutine):
        if not name.startswith("coatcheck_"):
            continue
        if name not in known:
            raise wrong(f"there is no hook {name}{closest(name, known)}")
        if manager.parse_hookimpl_opts(plugin, name) is None:
            raise wrong(f"{value.__qualname__} has the name of a hook; write @coatcheck.hookimpl above it")


def _describe(source: EntryPoint | object) -> PluginInfo:
    """Say what is known of a plugin before any of its code runs."""
    if not isinstance(source, EntryPoint):
        name = getattr(source, "__name__", type(source).__name__)
        return PluginInfo(name=name, status=PluginStatus.LOADED)
    distribution = source.dist
    return PluginInfo(
        name=source.name,
        distribution=distribution.name if distribution else PROJECT,
        version=distribution.version if distribution else "",
        status=PluginStatus.LOADED,
    )


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist else ""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _warn_about_unknown(disabled: Collection[str], found: Iterable[EntryPoint]) -> None:
    known = {BUILT_IN.name} | {name for point in found for name in (point.name, _origin(point))}
    for name in disabled:
        if _canonical(name) not in {_canonical(other) for other in known}:
            _log.warning("plugin %r is disabled but not installed%s", name, closest(name, known))


def _in_one_line(error: BaseException) -> str:
    """Return an error and its causes as one line."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 5:
        text = " ".join(str(seen).split())
        parts.append(f"{type(seen).__name__}: {text}" if text else type(seen).__name__)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return cut(", caused by ".join(parts), 2000)
