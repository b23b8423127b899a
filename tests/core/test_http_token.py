"""Tokens of vendors: when one is got, how long it is kept, and what happens when it is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from attrs import frozen

from coatcheck import codec
from coatcheck.errors import (
    HandlerError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    VendorError,
)
from coatcheck.http import Call, Follow, HttpHandler, Reply, Token, steps
from coatcheck.model import Account, QueryContext, QueryParams, QueryResult, Step, SubmitContext, SubmitResult
from coatcheck.testing.transport import ScriptedTransport, reply

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = QueryParams("job-1")


@codec.persistent("test.http_token")
@frozen
class Page:
    """A request."""


class Exchanging(HttpHandler[Page]):
    """A vendor whose calls carry a token."""

    key = "test:token"
    base_url = "https://api.vendor.test"

    def token_call(self, account: Account, last: Token | None) -> Call | Token | None:
        """Exchange the credentials."""
        form = {"id": account.secret("id"), "secret": account.secret()}
        if last is not None and "refresh" in last.extra:
            form["refresh"] = last.extra["refresh"]
        return Call("POST", "/token", form=form)

    def read_token(self, reply: Reply, account: Account) -> Token | Follow:
        """Read the token."""
        seen = reply.json()
        return Token(seen["token"], timedelta(seconds=seen["seconds"]), extra={"refresh": "refresh-me"})

    def sign(self, call: Call, account: Account) -> Call:
        """Add the token."""
        return call.with_headers(Authorization=account.secret("token"))

    def submit_call(self, params: Page, context: SubmitContext) -> Call:
        """Submit."""
        return Call("POST", "/jobs")

    def read_submit(self, reply: Reply, params: Page, context: SubmitContext) -> SubmitResult:
        """Read the id."""
        return SubmitResult.submitted(QueryParams(reply.json()["id"]))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Look at the job."""
        return Call("GET", "/jobs/1")

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read the state."""
        if reply.json().get("code") == 110:
            raise VendorError("the token is out of date", code="token_refused")
        return QueryResult.running()


class House:
    """One handler, its account and the clock."""

    def __init__(self, handler: Exchanging | None = None) -> None:
        self.handler = handler or Exchanging()
        self.parts = {"id": "id-1234", "secret": "secret-1234"}
        self.hidden: list[str] = []
        self.now = NOW

    def account(self, name: str = "default") -> Account:
        """Return the account as it is now."""

        def lookup(part: str) -> str:
            if part not in self.parts:
                raise UnknownNameError(f"no {part}", "account", name)
            return self.parts[part]

        return Account(name, lookup, self.hidden)

    def query(self, *outcomes: Any, account: str = "default") -> list[Call]:
        """Query and return what was called."""
        transport = ScriptedTransport(outcomes)
        self.handler.query(JOB, self.query_context(account, transport))
        return transport.calls

    def query_context(self, account: str = "default", transport: Any = None) -> QueryContext:
        """Return the context of a query now."""
        return QueryContext(
            task_id="t",
            created_at=NOW,
            deadline_at=NOW,
            now=self.now,
            account=self.account(account),
            transport=transport,
        )

    def submit(self, *outcomes: Any) -> list[Call]:
        """Submit and return what was called."""
        transport = ScriptedTransport(outcomes)
        context = SubmitContext(
            task_id="t", idempotency_key="k", now=self.now, account=self.account(), transport=transport
        )
        self.handler.submit(Page(), context)
        return transport.calls


def granted(token: str = "token-1", seconds: float = 3600) -> Reply:
    """Return what the vendor says to an exchange."""
    return reply({"token": token, "seconds": seconds})


RUNNING = reply({"id": "job-1"})


def test_a_token_is_got_once_and_used_by_submits_and_queries() -> None:
    """An exchange for each call would double the calls, and vendors limit exchanges."""
    house = House()
    exchange, submit = house.submit(granted(), RUNNING)
    assert exchange.form == {"id": "id-1234", "secret": "secret-1234"}
    assert "Authorization" not in exchange.headers
    assert (exchange.creates, submit.creates) == (False, True)
    assert submit.headers["Authorization"] == "token-1"
    (query,) = house.query(RUNNING)
    assert query.headers["Authorization"] == "token-1"


def test_each_account_has_its_own_token() -> None:
    """One customer's jobs must not run on another's account."""
    house = House()
    house.query(granted("token-1"), RUNNING)
    assert house.query(granted("token-2"), RUNNING, account="other")[-1].headers["Authorization"] == "token-2"
    assert house.query(RUNNING)[-1].headers["Authorization"] == "token-1"


def test_a_token_is_replaced_before_it_expires() -> None:
    """A call that leaves with a token in its last second arrives without one."""
    house = House()
    house.query(granted(seconds=600), RUNNING)
    house.now = NOW + timedelta(seconds=479)
    assert len(house.query(RUNNING)) == 1
    house.now = NOW + timedelta(seconds=541)
    exchange, query = house.query(granted("token-2"), RUNNING)
    assert exchange.form["refresh"] == "refresh-me"  # type: ignore[index]  # it has a form
    assert query.headers["Authorization"] == "token-2"


def test_one_of_many_gets_the_next_token_while_the_old_one_holds() -> None:
    """Hundreds of calls at the same time must not all exchange."""
    house = House()
    house.query(granted(seconds=600), RUNNING)
    house.now = NOW + timedelta(seconds=485)
    first, second = (steps(house.handler, Step.QUERY, JOB, house.query_context()) for _ in range(2))
    assert [next(first).url, next(second).url] == [
        "https://api.vendor.test/token",
        "https://api.vendor.test/jobs/1",
    ]
    first.send(granted("token-2"))
    assert house.query(RUNNING)[-1].headers["Authorization"] == "token-2"
    for conversation in (first, second):
        conversation.close()


def test_a_failed_renewal_is_no_harm_while_the_old_token_holds() -> None:
    """The vendor's exchange may be down for a minute."""
    house = House()
    house.query(granted(seconds=600), RUNNING)
    house.now = NOW + timedelta(seconds=485)
    exchange, query = house.query(Reply(500), RUNNING)
    assert (exchange.url, query.headers["Authorization"]) == ("https://api.vendor.test/token", "token-1")


def test_a_short_token_is_of_use_too() -> None:
    """A fixed margin would make a token of half a minute useless."""
    house = House()
    house.query(granted(seconds=30), RUNNING)
    house.now = NOW + timedelta(seconds=10)
    assert len(house.query(RUNNING)) == 1
    house.now = NOW + timedelta(seconds=25)
    assert len(house.query(granted(), RUNNING)) == 2


def test_rotated_credentials_reach_running_tasks() -> None:
    """A key that leaked is rotated, and what was made of it must not be used until it expires."""
    house = House()
    house.query(granted(), RUNNING)
    house.parts["secret"] = "secret-5678"
    exchange, query = house.query(granted("token-2"), RUNNING)
    assert exchange.form["secret"] == "secret-5678"  # type: ignore[index]  # it has a form
    assert query.headers["Authorization"] == "token-2"


def test_a_refused_token_is_given_up_and_closes_no_gate() -> None:
    """Vendors end tokens early; the next step gets a new one, and the submit was certainly not accepted."""
    house = House()
    house.query(granted(), RUNNING)
    with pytest.raises(NotSentError) as unsent:
        house.submit(Reply(401))
    assert unsent.value.code == "token_refused"
    house.submit(granted("token-2"), RUNNING)
    with pytest.raises(VendorError) as caught:
        house.query(Reply(401))
    assert (caught.value.code, caught.value.gate_delay) == ("token_refused", None)
    assert house.query(granted("token-3"), RUNNING)[-1].headers["Authorization"] == "token-3"


def test_a_new_token_that_is_refused_is_a_refused_account() -> None:
    """Another exchange would not help."""
    with pytest.raises(RejectedError) as rejected:
        House().submit(granted(), Reply(401))
    assert rejected.value.code == "account_refused"
    assert rejected.value.gate_delay == timedelta(seconds=60)


def test_a_reader_may_say_that_the_token_was_refused() -> None:
    """Vendors that answer everything with 200 say it in words."""
    house = House()
    house.query(granted(), RUNNING)
    with pytest.raises(VendorError):
        house.query(reply({"code": 110}))
    assert len(house.query(granted("token-2"), RUNNING)) == 2


@pytest.mark.parametrize(
    ("outcome", "on_submit", "on_query"),
    [
        (Reply(500), NotSentError, VendorError),
        (Reply(200, b"<html>"), NotSentError, VendorError),
        (Reply(200, b"{}"), NotSentError, VendorError),
        (Reply(429), ThrottledError, ThrottledError),
        (Reply(401), RejectedError, VendorError),
        (Reply(404), RejectedError, VendorError),
    ],
)
def test_a_failed_exchange_follows_the_table(
    outcome: Reply, on_submit: type[HandlerError], on_query: type[HandlerError]
) -> None:
    """It creates nothing, so that a submit may be tried again; and a missing exchange is no missing job."""
    with pytest.raises(on_submit) as caught:
        House().submit(outcome)
    assert type(caught.value) is on_submit
    with pytest.raises(on_query) as caught:
        House().query(outcome)
    assert type(caught.value) is on_query


def test_neither_credentials_nor_tokens_are_written() -> None:
    """A token opens the same doors as the key that it was made of (G8)."""
    house = House()
    with pytest.raises(RejectedError) as caught:
        house.submit(granted("token-1234"), reply({"error": "token-1234 is not allowed to"}, 403))
    assert "token-1234" not in f"{caught.value!r}"
    assert set(house.hidden) == {"token-1234", "refresh-me"}
    assert "token-1234" not in repr(Token("token-1234", extra={"a": "token-1234"}))
    kept = house.handler.tokens.get((house.handler.base_url, "default"))
    assert kept is not None
    assert "1234" not in repr(kept)


def test_an_account_that_is_not_configured_gets_through() -> None:
    """The worker gives the step back to one that has the account."""
    house = House()
    house.parts.clear()
    with pytest.raises(UnknownNameError):
        house.submit()


class Elsewhere(Exchanging):
    """Tokens come from another origin, in two calls."""

    token_base_url = "https://login.vendor.test/v1"

    def read_token(self, reply: Reply, account: Account) -> Token | Follow:
        """Answer the vendor's question."""
        call = Call("POST", "/answer", json={"id": account.secret("id"), "proof": reply.json()["nonce"]})
        return Follow(call, lambda last: Token(last.json()["token"]))


def test_a_token_may_come_from_another_origin_and_take_several_calls() -> None:
    """Credentials go to the configured origins only; the one for tokens is one of them."""
    house = House(Elsewhere())
    calls = house.query(reply({"nonce": "n"}), reply({"token": "token-1"}), RUNNING)
    assert [call.url for call in calls] == [
        "https://login.vendor.test/v1/token",
        "https://login.vendor.test/v1/answer",
        "https://api.vendor.test/jobs/1",
    ]
    assert [call.sign is not None for call in calls] == [False, False, True]
    house.now = NOW + timedelta(days=400)
    assert len(house.query(RUNNING)) == 1


def test_a_token_may_be_made_without_a_call_or_not_be_needed() -> None:
    """Some are signed here, and some accounts have a key that lasts."""

    class Making(Exchanging):
        def token_call(self, account: Account, last: Token | None) -> Call | Token | None:
            return Token(f"made-of-{account.secret()}", timedelta(minutes=30))

    assert House(Making()).query(RUNNING)[0].headers["Authorization"] == "made-of-secret-1234"

    class Lasting(Exchanging):
        def token_call(self, account: Account, last: Token | None) -> Call | Token | None:
            return None

    with pytest.raises(HandlerError, match="no token for account"):
        House(Lasting()).query(RUNNING)

    class Signing(Lasting):
        def sign(self, call: Call, account: Account) -> Call:
            return call.with_headers(Authorization=account.secret())

    assert House(Signing()).query(RUNNING)[0].headers["Authorization"] == "secret-1234"


def test_something_else_than_a_token_is_an_error() -> None:
    """A forgotten return must not become a header."""

    class Forgetful(Exchanging):
        def read_token(self, reply: Reply, account: Account) -> Token | Follow:
            return None  # type: ignore[return-value]  # the mistake that the test is about

    with pytest.raises(HandlerError, match="read_token must return a Token"):
        House(Forgetful()).query(granted())


def test_a_token_keeps_on_when_the_region_changes() -> None:
    """query_client may return a new handler each time; its tokens are kept by the registered one."""

    class Regional(Exchanging):
        def query_client(self, params: QueryParams, context: QueryContext) -> HttpHandler[Page]:
            client = Regional()
            client.base_url = "https://north.vendor.test"
            return client

    house = House(Regional())
    assert len(house.query(granted(), RUNNING)) == 2
    assert len(house.query(RUNNING)) == 1
    assert len(house.submit(granted(), RUNNING)) == 2


def test_evolving_an_account_keeps_what_it_hides() -> None:
    """Contexts are copied with attrs."""
    house = House()
    attrs.evolve(house.account(), name="other").hide("token-9")
    assert house.hidden == ["token-9"]
