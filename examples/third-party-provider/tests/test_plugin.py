"""The installed plugin, as coatcheck sees it."""

from importlib.metadata import entry_points


def test_the_entry_point_leads_to_a_plugin_module() -> None:
    """Installing the package is all that a user has to do."""
    (entry_point,) = entry_points(group="coatcheck", name="echo")
    assert entry_point.load().coatcheck_api == 1
