"""The worker: one process, many tasks. ``loop`` claims, calls and commits; its helpers stand beside it.

Nothing in here knows SQL, HTTP to vendors, or what an answer means.
"""

from coatcheck.worker.health import Health
from coatcheck.worker.loop import Worker
from coatcheck.worker.process import own_process
from coatcheck.worker.settings import WorkerSettings

__all__ = ["Health", "Worker", "WorkerSettings", "own_process"]
