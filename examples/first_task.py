"""A first task: a handler of our own, and a store and a worker inside this process.

Run it with ``python first_task.py``; nothing but coatcheck is needed.
"""

import time
from datetime import timedelta

from attrs import frozen

import coatcheck
from coatcheck import PollPolicy, QueryContext, QueryParams, QueryResult, SubmitContext, SubmitResult


@coatcheck.persistent("example.egg")
@frozen
class Egg:
    """A request: an egg to be boiled."""

    seconds: float


@coatcheck.persistent("example.breakfast")
@frozen
class Breakfast:
    """A result: the egg, and how it came out."""

    text: str


class Cook(coatcheck.TaskHandler[Egg]):
    """Takes an egg, answers with a ticket, and can be asked again until the egg is done."""

    key = "example:cook"
    poll = PollPolicy.exponential(timedelta(milliseconds=200), jitter=0)

    def submit(self, params: Egg, context: SubmitContext) -> SubmitResult:
        """Put the egg into the water; what a later query needs goes into the query params."""
        return SubmitResult.running(QueryParams("egg-1", began=time.time(), seconds=params.seconds))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Look at the egg once: waiting, looping and retrying is the worker's business."""
        passed = time.time() - params["began"]
        if passed < params["seconds"]:
            return QueryResult.running(progress=100 * passed / params["seconds"])
        return QueryResult.succeeded(
            Breakfast(f"boiled for {params['seconds']:g} s, asked {context.query_count + 1} times")
        )


with coatcheck.local(handlers=[Cook()]) as house:
    print(house.run(Egg(seconds=1.0)).text)
