"""The handler that is made of a description: it fills the calls' templates and reads replies by expressions.

All texts of the description are compiled and checked when the handler is made. What is done with a reply is
the same for every vendor: errors in it first, then the word for the state, then what that state has.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
import cattrs

from coatcheck import codec
from coatcheck.descriptor.finder import Finder, finders, number_of, optional, seconds_of, whole_of, word_of
from coatcheck.descriptor.plan import CallPlan, fill_headers
from coatcheck.descriptor.reading import CancelReader, Envelope, LookupReader, ResultReader
from coatcheck.descriptor.scope import (
    auth_of,
    base_url_of,
    hosts_of,
    query_scope,
    registered_type,
    submit_scope,
    words_of,
)
from coatcheck.descriptor.tables import Descriptor
from coatcheck.descriptor.template import Resolve, fill, resolver, tree_of
from coatcheck.errors import ConfigError, JobNotFoundError, ValidationError, VendorError
from coatcheck.http import Call, Follow, HttpHandler, Reply
from coatcheck.model import (
    Account,
    CancelResult,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
)
from coatcheck.registry import Registry

_log = logging.getLogger(__name__)

#: So many unknown words of a vendor are warned of; a vendor that makes words up must not fill the log.
_WARNINGS = 100

#: Turns a request of any registered type into what JSON has.
_PLAIN = cattrs.Converter()
_PLAIN.register_unstructure_hook(datetime, lambda value: value.isoformat())
_PLAIN.register_unstructure_hook(timedelta, lambda value: value.total_seconds())


class DescribedHandler(HttpHandler[Any]):
    """Does what a ``Descriptor`` says.

    Raises:
        ConfigError: something in the description is wrong or missing.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.key = key = descriptor.key
        self.provider = descriptor.provider
        self.account = descriptor.account
        self.resubmit = descriptor.resubmit
        self.poll = descriptor.poll
        self.call_limit = descriptor.call_limit
        self.lookup_delay = descriptor.lookup_delay
        self.max_job_time = descriptor.max_job_time
        self.not_found_limit = descriptor.not_found_limit
        self.keep_params = descriptor.keep_params
        self.allowed_hosts = hosts_of(descriptor)
        self.base_url, self._is_regional = base_url_of(descriptor)
        request_type = registered_type(descriptor.request, f"{key}: request")
        # A class variable of handlers in general; of these every instance has its own.
        vars(self)["params_type"] = request_type
        self._regions: dict[str, DescribedHandler] = {}
        self._warned: set[str] = set()

        submitting = submit_scope(request_type, descriptor.region)
        asking = query_scope(descriptor)
        limit = descriptor.call_limit
        submit, query, failure = descriptor.submit, descriptor.query, descriptor.failure
        self._auth = auth_of(descriptor)
        self._submit = CallPlan(submit, submitting, f"{key}: submit", limit)
        self._query = CallPlan(query, asking, f"{key}: query", limit)
        self._keep = tree_of(submit.keep, submitting, f"{key}: submit.keep")
        self._id = Finder(submit.id, f"{key}: submit.id")
        self._params = finders(submit.params, f"{key}: submit.params")
        self._submit_status = optional(submit.status, f"{key}: submit.status")
        self._status = Finder(query.status, f"{key}: query.status")
        self._progress = optional(query.progress, f"{key}: query.progress")
        self._total = optional(query.total, f"{key}: query.total")
        self._query_after = optional(query.query_after, f"{key}: query.query_after")
        self._next_params = finders(query.params, f"{key}: query.params")
        self._words = words_of(descriptor)
        self._failure_code = optional(failure.code, f"{key}: failure.code")
        self._failure_message = optional(failure.message, f"{key}: failure.message")
        self._usage = finders(descriptor.usage, f"{key}: usage")
        self._envelope = Envelope(descriptor.errors, f"{key}: errors") if descriptor.errors else None
        result_type = registered_type(descriptor.result.type, f"{key}: result.type")
        self._result = ResultReader(descriptor, result_type, asking)
        self._cancel = CancelReader(descriptor.cancel, asking, key, limit) if descriptor.cancel else None
        self._lookup = LookupReader(descriptor, descriptor.lookup, submitting) if descriptor.lookup else None
        self._check_whole()

    def _check_whole(self) -> None:
        """Refuse what is right in each part and cannot work together."""
        key, descriptor = self.key, self.descriptor
        plans = [self._query] if self._cancel is None else [self._query, self._cancel.plan]
        for plan in plans:
            if not plan.uses("external_task_id", "params"):
                raise ConfigError(
                    f"{plan.where} must say which job is meant: write {{external_task_id}} or {{params.…}} "
                    "into its path, url, query, headers or json"
                )
        if not self._submit.uses("idempotency_key"):
            needy = ['resubmit = "idempotent"'] if self.resubmit == "idempotent" else []
            for needs in [*needy, "lookup"] if self._lookup else needy:
                raise ConfigError(
                    f"{key}: {needs} needs {{idempotency_key}} in a header, the query or the json of submit; "
                    f"add it where the vendor expects the key, or drop {needs}"
                )
        if descriptor.query.total is not None and self._progress is None:
            raise ConfigError(f"{key}: query.total needs progress, the place of what counts up to it")
        if descriptor.failure.retryable and self._failure_code is None:
            raise ConfigError(f"{key}: failure.retryable needs code, the place of the codes that it lists")

    @property
    def has_cancel(self) -> bool:
        """Whether the description has a cancel."""
        return self._cancel is not None

    @property
    def has_lookup(self) -> bool:
        """Whether the description has a lookup."""
        return self._lookup is not None

    def validate(self, params: Any) -> None:
        """Refuse a request that lacks what the calls need."""
        context = {"task_id": "task", "idempotency_key": "key"}
        resolve = resolver({**self._submit_values(params), **context})
        self._submit.call(resolve, self.base_url)
        fill(self._keep, resolve)

    def sign(self, call: Call, account: Account) -> Call:
        """Add the credentials."""
        if not self._auth:
            return call

        def secret(path: tuple[str, ...]) -> str:
            return account.secret(".".join(path[1:]) or "secret")

        try:
            return call.evolve(headers={**call.headers, **fill_headers(self._auth, secret)})
        except ValidationError as error:
            # Found out before anything is sent, so it must not look as if something had been.
            raise ConfigError(error.message) from None

    # Submits.

    def submit_call(self, params: Any, context: SubmitContext) -> Call:
        """Describe the submit."""
        resolve = self._submit_resolve(params, context)
        # Before anything is sent, not when the job exists.
        fill(self._keep, resolve)
        return self._submit.call(resolve, self.base_url)

    def read_submit(self, reply: Reply, params: Any, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit."""
        body = reply.json()
        if (failed := self._check(body)) is not None:
            return SubmitResult.failed(*failed, retryable=self._is_retryable(failed[0]))
        word = word_of(self._submit_status.find(body)) if self._submit_status else None
        state = "submitted" if word is None else self._state(word, context.task_id)
        if state == "failed":
            code, message = self._failure(body, word)
            return SubmitResult.failed(
                code,
                message,
                retryable=self._is_retryable(code),
                usage=self._used(body),
                provider_status=word,
            )
        if state == "succeeded" and (at_once := self._result.at_once(body)) is not None:
            return SubmitResult.succeeded(
                at_once,
                usage=self._used(body),
                expires_after=self.descriptor.result.expires_after,
                provider_status=word,
            )
        # Whatever else the state is: the job has an id, and the first query sees the rest.
        query_params = self._job(self._id, self._params, body, self._submit_resolve(params, context))
        if state == "submitted":
            return SubmitResult.submitted(query_params, provider_status=word)
        return SubmitResult.running(query_params, provider_status=word)

    def _job(self, place: Finder, params: Mapping[str, Finder], body: Any, resolve: Resolve) -> QueryParams:
        found = word_of(place.find(body))
        if found is None:
            raise place.missing()
        stored = fill(self._keep, resolve)
        if self.descriptor.region is not None:
            stored["region"] = self.descriptor.region
        for name, finder in params.items():
            if (value := finder.find(body)) is not None:
                stored[name] = value
        return QueryParams(found, **stored)

    def _submit_values(self, params: Any) -> dict[str, Any]:
        return {"request": _PLAIN.unstructure(params), "region": self.descriptor.region}

    def _submit_resolve(self, params: Any, context: SubmitContext) -> Resolve:
        return resolver(
            {
                **self._submit_values(params),
                "task_id": context.task_id,
                "idempotency_key": context.idempotency_key,
            }
        )

    # Queries.

    def query_client(self, params: QueryParams, context: QueryContext) -> "DescribedHandler":
        """Return the handler for the region that the job was submitted in."""
        region = params.get("region")
        if not self._is_regional or region == self.descriptor.region or not isinstance(region, str):
            return self
        if region not in self._regions:
            self._regions[region] = DescribedHandler(attrs.evolve(self.descriptor, region=region))
        return self._regions[region]

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return self._query.call(self._query_resolve(params, context), self.base_url)

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query."""
        body = reply.json()
        if (failed := self._check(body)) is not None:
            return QueryResult.failed(*failed, self._is_retryable(failed[0]))
        word = word_of(self._status.find(body))
        if word is None:
            raise self._status.missing()
        match state := self._state(word, context.task_id):
            case "succeeded":
                return self._succeeded(body, word, self._query_resolve(params, context))
            case "failed":
                code, message = self._failure(body, word)
                usage = self._used(body)
                return QueryResult.failed(
                    code, message, self._is_retryable(code), usage=usage, provider_status=word
                )
            case "canceled":
                return QueryResult.canceled(usage=self._used(body), provider_status=word)
        moved = {
            name: value
            for name, finder in self._next_params.items()
            if (value := finder.find(body)) is not None
        }
        after = seconds_of(self._query_after.glimpse(body)) if self._query_after else None
        next_params = None
        if moved:
            next_params = QueryParams(params.external_task_id, **{**params.provider_params, **moved})
        if state == "submitted":
            return QueryResult.submitted(
                provider_status=word, next_query_params=next_params, query_after=after
            )
        return QueryResult.running(
            self._percent(body), provider_status=word, next_query_params=next_params, query_after=after
        )

    def _succeeded(self, body: Any, word: str, resolve: Resolve) -> QueryResult | Follow:
        usage, url = self._used(body), self._result.link(body)

        def end(value: Any) -> QueryResult:
            return QueryResult.succeeded(
                self._result.make(value, url),
                usage=usage,
                expires_after=self.descriptor.result.expires_after,
                provider_status=word,
            )

        fetch = self._result.fetch
        if fetch is None:
            return end(body)

        def read(reply: Reply) -> QueryResult:
            if self._result.is_text:
                return end(reply.text)
            fetched = reply.json()
            if self._result.has_envelope and (failed := self._check(fetched)) is not None:
                raise VendorError(failed[1], code=failed[0])
            return end(fetched)

        def with_url(path: tuple[str, ...]) -> Any:
            return url if path == ("url",) else resolve(path)

        return Follow(fetch.call(with_url, self.base_url), read)

    def _query_resolve(self, params: QueryParams, context: QueryContext) -> Resolve:
        return resolver(
            {
                "external_task_id": params.external_task_id,
                "task_id": context.task_id,
                "params": params.provider_params,
                "region": params.get("region", self.descriptor.region),
            }
        )

    # Cancels and lookups.

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel."""
        cancel = self._cancel
        assert cancel is not None  # noqa: S101  # narrows the type: see has_cancel
        return cancel.plan.call(
            self._query_resolve(params, context), self.base_url, accept=cancel.refused_status
        )

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel."""
        cancel = self._cancel
        assert cancel is not None  # noqa: S101  # narrows the type: see has_cancel
        if reply.status in cancel.refused_status:
            return CancelResult.refused(f"the vendor answered with {reply.status}: {reply.excerpt}")
        if cancel.outcome is None and self._envelope is None:
            return CancelResult.accepted()
        # A reply without a body is common here.
        body = reply.json() if reply.body.strip() else None
        if (failed := self._check(body)) is not None:
            raise VendorError(failed[1], code=failed[0])
        return cancel.read(body)

    def lookup_call(self, params: Any, context: SubmitContext) -> Call:
        """Describe the lookup."""
        assert self._lookup is not None  # noqa: S101  # narrows the type: see has_lookup
        return self._lookup.plan.call(self._submit_resolve(params, context), self.base_url)

    def read_lookup(self, reply: Reply, params: Any, context: SubmitContext) -> LookupResult:
        """Read the reply to the lookup."""
        lookup = self._lookup
        assert lookup is not None  # noqa: S101  # narrows the type: see has_lookup
        body = reply.json()
        try:
            failed = self._check(body)
        except JobNotFoundError:
            # The vendor's own word, listed by whoever described it; a page that is missing looks otherwise.
            return LookupResult.not_found()
        if failed is not None:
            raise VendorError(failed[1], code=failed[0])
        job = lookup.job(body, context.idempotency_key)
        if job is None:
            return LookupResult.not_found()
        resolve = self._submit_resolve(params, context)
        return LookupResult.found(self._job(lookup.id, lookup.params, job, resolve))

    # Reading.

    def _check(self, body: Any) -> tuple[str, str] | None:
        return self._envelope.check(body) if self._envelope is not None else None

    def _state(self, word: str, task_id: str) -> str:
        state = self._words.get(word.casefold())
        if state is None and word not in self._warned and len(self._warned) < _WARNINGS:
            self._warned.add(word)
            # Without the word itself: it comes from outside, and the log does not mask secrets.
            _log.warning(
                "%s: the vendor's word for the state of task %s (its provider_status) is in no list of words "
                "and counts as running",
                self.key,
                task_id,
            )
        return state or "running"

    def _failure(self, body: Any, word: str | None) -> tuple[str, str]:
        code = word_of(self._failure_code.glimpse(body)) if self._failure_code else None
        message = self._failure_message.glimpse(body) if self._failure_message else None
        if isinstance(message, dict | list):
            message = codec.dumps(message).decode()
        return code or "failed", str(message or "").strip() or f"the vendor says {word!r} and gives no reason"

    def _is_retryable(self, code: str) -> bool:
        return code.casefold() in self.descriptor.failure.retryable

    def _used(self, body: Any) -> dict[str, int] | None:
        amounts = {unit: whole_of(finder.glimpse(body)) for unit, finder in self._usage.items()}
        return {unit: amount for unit, amount in amounts.items() if amount is not None} or None

    def _percent(self, body: Any) -> float | None:
        done = number_of(self._progress.glimpse(body)) if self._progress else None
        if done is None or self._total is None:
            return done
        total = number_of(self._total.glimpse(body))
        return 100 * done / total if total else None


def add_declared(registry: Registry, tables: Iterable[Mapping[str, Any]], by: str = "settings") -> None:
    """Make a handler of each description and register it. Repeatable: equal descriptions are passed over.

    Args:
        registry: where; the types that descriptions name must be registered already.
        tables: the descriptions, like ``Config.handlers``.
        by: who describes them, for messages.

    Raises:
        ConfigError: a description is wrong; the message says where.
        DuplicateNameError: another handler has the key.
    """
    for index, table in enumerate(tables):
        descriptor = Descriptor.of(table, f"$.handlers[{index}]")
        held = registry.handlers.get(descriptor.key)
        if held is None or getattr(held.handler, "descriptor", None) != descriptor:
            registry.add_handler(descriptor.handler(), by=by)
