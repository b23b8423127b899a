"""Contract tests, strategies and fakes for authors of plugins; nothing else in coatcheck may import them.

``store_contract``, ``handler_contract``, ``selector_contract`` and ``transport_contract`` hold the rules of a
store, a handler, a selector and a transport; ``vendor_matrix`` runs a vendor's tasks against its sandbox;
``store_machine`` drives a store against the plain model in ``store_model``; ``records`` and ``strategies``
make what a store keeps; ``contexts`` and ``transport`` stand in for a worker; ``clock`` is moved by tests.
Import the modules by name: this one stays empty, so that the clock does not need Hypothesis.
"""

import contextlib

with contextlib.suppress(ImportError):
    import pytest

    # Without this a failing rule shows a bare AssertionError in projects that only import the contract.
    pytest.register_assert_rewrite(
        "coatcheck.testing.store_contract",
        "coatcheck.testing.store_machine",
        "coatcheck.testing.selector_contract",
        "coatcheck.testing.handler_contract",
        "coatcheck.testing.transport_contract",
        "coatcheck.testing.vendor_matrix",
    )
