"""The selector keeps coatcheck's contract, and prefers."""

import pytest
from coatcheck_thumbnail import Prefer

from coatcheck import SelectorError
from coatcheck.testing.selector_contract import SelectorContract


class TestPrefer(SelectorContract):
    """The rules for every selector."""

    @pytest.fixture
    def selector(self) -> Prefer:
        """Return the selector; it may know handlers that are no candidates."""
        return Prefer(["contract:missing", "contract:b", "contract:a"])

    def test_the_first_known_key_wins(self, selector: Prefer) -> None:
        """The order of the list decides, not that of the candidates; without a preference the first does."""
        for keys, expected in (
            (("contract:a", "contract:b", "contract:c"), "contract:b"),
            (("contract:a", "contract:c"), "contract:a"),
            (("contract:c", "contract:d"), "contract:c"),
        ):
            assert selector.select(self.new_context(keys=keys)).key == expected


def test_a_single_text_is_not_a_list_of_keys() -> None:
    """A text is iterable too: taken letter by letter it would prefer nothing, silently."""
    with pytest.raises(SelectorError, match="write \\['thumbnail:example'\\]"):
        Prefer("thumbnail:example")
