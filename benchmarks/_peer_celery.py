"""Whole lives of tasks through Celery, a contestant of ``peers``: ``_peer_celery.py TASKS``.

Its workers import this file.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests
from _peer import measured
from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_REDIS"], backend=os.environ["BENCH_REDIS"])
app.conf.update(
    # Late acknowledgement, as its documentation has it for tasks that must not be lost with a worker.
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    result_expires=3600,
)
VENDOR = os.environ["BENCH_VENDOR"]
POLLS = int(os.environ["BENCH_POLLS"])
session = requests.Session()
session.trust_env = False


@app.task(name="submit")
def submit(text: str) -> None:
    """Create the job, and a task that polls it."""
    job = session.post(
        f"{VENDOR}/jobs",
        json={"text": text, "script": {"polls": POLLS}},
        headers={"Idempotency-Key": f"submit-{text}"},
        timeout=60,
    ).json()
    poll.apply_async((job["id"],), task_id=f"poll-{text}")


@app.task(name="poll", bind=True, max_retries=None)
def poll(self: Any, job: str) -> str:
    """Look at the job, again and again."""
    answer = session.get(f"{VENDOR}/jobs/{job}", timeout=60).json()
    if answer["status"] != "succeeded":
        raise self.retry(countdown=0)
    return str(answer["output"]["text"])


def main(tasks: int) -> None:
    """Store tasks, and run a worker until they have ended."""
    for number in range(tasks):
        submit.apply_async((f"task {number}",), task_id=f"submit-task {number}")
    command = ["-m", "celery", "-A", Path(__file__).stem, "worker", "--pool=prefork", "--concurrency=2"]
    backend = app.backend
    with measured():
        worker = subprocess.Popen(
            [sys.executable, *command, "--loglevel=ERROR", "--without-gossip", "--without-mingle"],
            cwd=Path(__file__).parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(tasks):
            # Its own objects for results wait on locks of their own, and did not always come back here.
            while b'"SUCCESS"' not in (backend.get(backend.get_key_for_task(f"poll-task {number}")) or b""):
                time.sleep(0.2)
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
