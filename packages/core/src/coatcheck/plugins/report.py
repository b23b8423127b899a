"""What became of each plugin."""

from collections.abc import Iterator
from enum import StrEnum

from attrs import frozen


class PluginStatus(StrEnum):
    """What became of a plugin."""

    LOADED = "loaded"
    #: It is broken; nothing that it registered is left.
    FAILED = "failed"
    #: The configuration names it, or its distribution; its code was not touched.
    DISABLED = "disabled"


@frozen(kw_only=True)
class PluginInfo:
    """One plugin."""

    #: The name of its entry point.
    name: str
    #: The distribution that it came with; empty for one that the application added.
    distribution: str = ""
    version: str = ""
    status: PluginStatus
    #: What went wrong, with its causes, in one line.
    error: str = ""

    def __str__(self) -> str:
        origin = f" from {self.distribution} {self.version}".rstrip() if self.distribution else ""
        return f"plugin {self.name!r}{origin}"


@frozen
class PluginReport:
    """All plugins that were found, in the order in which they were loaded."""

    plugins: tuple[PluginInfo, ...] = ()

    def __iter__(self) -> Iterator[PluginInfo]:
        return iter(self.plugins)

    @property
    def failed(self) -> tuple[PluginInfo, ...]:
        """Those that could not be loaded."""
        return tuple(plugin for plugin in self.plugins if plugin.status is PluginStatus.FAILED)
