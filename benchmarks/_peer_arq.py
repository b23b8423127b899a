"""Whole lives of tasks through arq, a contestant of ``peers``: ``_peer_arq.py TASKS``."""

import asyncio
import os
import sys
from typing import Any

import aiohttp
import uvloop
from _peer import measured
from arq import Retry, create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

VENDOR = os.environ["BENCH_VENDOR"]
POLLS = int(os.environ["BENCH_POLLS"])


async def submit(context: dict[str, Any], text: str) -> None:
    """Create the job, and a task that polls it."""
    async with context["session"].post(
        f"{VENDOR}/jobs",
        json={"text": text, "script": {"polls": POLLS}},
        headers={"Idempotency-Key": context["job_id"]},
    ) as response:
        job = await response.json()
    await context["redis"].enqueue_job("poll", job["id"], _job_id=f"poll-{text}")


async def poll(context: dict[str, Any], job: str) -> str:
    """Look at the job, again and again."""
    async with context["session"].get(f"{VENDOR}/jobs/{job}") as response:
        answer = await response.json()
    if answer["status"] != "succeeded":
        raise Retry(defer=0)
    return str(answer["output"]["text"])


async def main(tasks: int) -> None:
    """Store tasks, and be a worker until they have ended."""
    pool = await create_pool(RedisSettings.from_dsn(os.environ["BENCH_REDIS"]))
    for number in range(tasks):
        await pool.enqueue_job("submit", f"task {number}", _job_id=f"submit-task {number}")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        worker = Worker(
            functions=[func(submit, name="submit"), func(poll, name="poll", max_tries=1000)],
            redis_pool=pool,
            ctx={"session": session},
            max_jobs=100,
            poll_delay=0.05,
            keep_result=3600,
            handle_signals=False,
        )
        with measured():
            running = asyncio.create_task(worker.async_run())
            while worker.jobs_complete < 2 * tasks:  # noqa: ASYNC110  # arq counts, and tells nobody
                await asyncio.sleep(0.01)
        if worker.jobs_failed:
            raise SystemExit(f"{worker.jobs_failed} jobs failed")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
