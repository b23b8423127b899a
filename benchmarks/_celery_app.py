"""The Celery application of ``peers``, for its workers to import."""

import os
from typing import Any

import requests
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
session = requests.Session()
session.trust_env = False


@app.task(name="submit")
def submit(text: str) -> None:
    """Create the job, and a task that polls it."""
    job = session.post(
        f"{VENDOR}/jobs",
        json={"text": text, "script": {"polls": 3}},
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
