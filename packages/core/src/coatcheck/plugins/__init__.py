"""Loading plugins, each alone, and calling their hooks."""

from coatcheck.plugins.calling import Plugins
from coatcheck.plugins.loading import load_plugins
from coatcheck.plugins.report import PluginInfo, PluginReport, PluginStatus

__all__ = ["PluginInfo", "PluginReport", "PluginStatus", "Plugins", "load_plugins"]
