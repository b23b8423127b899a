"""The contract that every store keeps, as pytest rules.

Subclass ``StoreContract``, give it the fixture ``make_store``, and say which ``capabilities`` the store has::

    class TestAcmeStore(StoreContract):
        capabilities = frozenset()

        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda **options: AcmeStore(tmp_path / "acme.db", **options)

The rules are in one module per group of verbs; what they share is in ``base``. Rules speak only of what
``coatcheck.store`` promises, never of how a store does it.
"""

from coatcheck.testing.store_contract.add import AddRules, ReadRules
from coatcheck.testing.store_contract.base import MakeStore, StoreRules
from coatcheck.testing.store_contract.blocked import BlockedRules
from coatcheck.testing.store_contract.claim import ClaimRules
from coatcheck.testing.store_contract.commit import CommitRules
from coatcheck.testing.store_contract.flags import FlagRules
from coatcheck.testing.store_contract.lease import LeaseRules
from coatcheck.testing.store_contract.limits import LimitRules
from coatcheck.testing.store_contract.order import OrderRules
from coatcheck.testing.store_contract.upkeep import UpkeepRules
from coatcheck.testing.store_contract.waiting import WaitingRules

__all__ = ["GROUPS", "MakeStore", "StoreContract", "StoreRules"]

#: The groups of rules, in the order in which they are best read.
GROUPS: tuple[type[StoreRules], ...] = (
    AddRules,
    ReadRules,
    ClaimRules,
    OrderRules,
    LeaseRules,
    CommitRules,
    FlagRules,
    LimitRules,
    BlockedRules,
    UpkeepRules,
    WaitingRules,
)


class StoreContract(
    AddRules,
    ReadRules,
    ClaimRules,
    OrderRules,
    LeaseRules,
    CommitRules,
    FlagRules,
    LimitRules,
    BlockedRules,
    UpkeepRules,
    WaitingRules,
):
    """Every rule of a store; the subclass gives the fixture ``make_store`` and says its ``capabilities``."""
