"""One step of a task: from a lease to the transition that its commit writes.

Shared by the worker and by ``manager.refresh``. ``reading`` says what an answer means and is pure; ``steps``
finds the handler, makes the one call of the step and builds the transition. Nothing here writes to a store.
"""

from coatcheck.step.steps import (
    CANCEL_LIMIT,
    Finished,
    Plan,
    Steps,
    needs_call,
    transition_of,
    unleased,
)

__all__ = ["CANCEL_LIMIT", "Finished", "Plan", "Steps", "needs_call", "transition_of", "unleased"]
