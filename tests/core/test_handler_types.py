"""How a handler's params type is found, and which handlers are refused with what to write instead."""

from datetime import timedelta
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import pytest
from attrs import frozen

from coatcheck.errors import ConfigError
from coatcheck.handler import AnyHandler, TaskHandler, check_handler, params_type_of, resolve
from coatcheck.model import (
    HandlerTraits,
    Limit,
    QueryContext,
    QueryParams,
    QueryResult,
    Rate,
    Side,
    SubmitContext,
    SubmitResult,
)
from coatcheck.policy import PollPolicy

P = TypeVar("P")
Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")


@frozen
class Document:
    """A request."""


@frozen
class Picture:
    """Another request."""


@frozen
class Box(Generic[T]):
    """A generic class, which is no plain type of request."""


class Base(TaskHandler[P]):
    """What all handlers here have."""

    key = "test:vendor"

    def submit(self, params: P, context: SubmitContext) -> SubmitResult:
        """Take the job."""
        return SubmitResult.submitted(QueryParams("job-1"))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Look at it."""
        return QueryResult.running()


class Direct(TaskHandler[Document]):
    """Straight from the root."""

    key = "test:direct"

    def submit(self, params: Document, context: SubmitContext) -> SubmitResult:
        """Take the job."""
        return SubmitResult.submitted(QueryParams("job-1"))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Look at it."""
        return QueryResult.running()


class Heir(Direct):
    """Says nothing new."""


class GrandHeir(Heir):
    """Nor does this one."""


class OfBase(Base[Document]):
    """Through a generic base."""


class Middle(Base[Q]):
    """Passes the variable on under another name."""


class Deep(Middle[R], Generic[R]):
    """And once more."""


class ThreeDeep(Deep[Document]):
    """Three levels above."""


class Swapped(Base[P], Generic[Q, P]):
    """Has two variables, the second of which is the request."""


class OfSwapped(Swapped[Picture, Document]):
    """Binds both."""


class HalfBound(Swapped[Picture, T], Generic[T]):
    """Binds one and passes the other on."""


class OfHalfBound(HalfBound[Document]):
    """Binds the rest."""


class Reused(Base[T], Generic[T, P]):
    """Uses the root's own variable for something else."""


class OfReused(Reused[Document, Picture]):
    """Binds both."""


class Plain:
    """A mixin that has nothing to do with handlers."""


class Labelled(Generic[T]):
    """A generic mixin that has nothing to do with handlers."""


class Logging(Base[P]):
    """A mixin that is a handler itself and leaves the request open."""


class MixinFirst(Plain, Labelled[Picture], Base[Document]):
    """Mixins in front."""


class MixinLast(Base[Document], Labelled[Picture], Plain):
    """Mixins behind."""


class OpenMixinFirst(Logging, Direct):  # type: ignore[type-arg]  # a raw mixin is what people write
    """An open handler in front of a bound one."""


class Diamond(Middle[Document], Logging[Document]):
    """Two ways up that agree."""


class Stated(Base):  # type: ignore[type-arg]  # the type is said in the class instead
    """Says it in so many words."""

    params_type = Document


class HeirOfStated(Stated):
    """Inherits the words."""


@pytest.mark.parametrize(
    "cls",
    [
        *(Direct, Heir, GrandHeir, OfBase, ThreeDeep, OfSwapped, OfHalfBound, OfReused),
        *(MixinFirst, MixinLast, OpenMixinFirst, Diamond, Stated, HeirOfStated),
    ],
    ids=lambda cls: cls.__name__,
)
def test_params_type_is_found(cls: type[AnyHandler]) -> None:
    """Direct, through generic bases, three levels deep, beside mixins, re-bound variables, or stated."""
    assert params_type_of(cls) is Document
    assert params_type_of(cls()) is Document
    assert resolve(cls()).params_type is Document


def test_stated_type_may_belong_to_one_instance() -> None:
    """A handler that is declared by data sets it when it is made."""

    class Declared(Base):  # type: ignore[type-arg]  # the type is known only at run time
        def __init__(self, params_type: type) -> None:
            self.params_type = params_type  # type: ignore[misc]  # a class variable by default

    assert [params_type_of(Declared(cls)) for cls in (Document, Picture)] == [Document, Picture]


def test_stated_type_wins() -> None:
    """What is said in so many words is not second-guessed."""

    class Both(Base[Picture]):
        params_type = Document

    assert params_type_of(Both) is Document


class Raw(Base):  # type: ignore[type-arg]  # the mistake that is refused
    """A raw base."""


class Unbound(Middle[Q], Generic[Q]):
    """Leaves the variable open."""


class OfList(Base[list[Document]]):
    """A container."""


class OfOpenList(Base[list[T]], Generic[T]):
    """A container of whatever comes."""


class ClosedOpenList(OfOpenList[Document]):
    """A container after all."""


class OfUnion(Base[Document | Picture]):
    """Two types at once."""


class OfOptional(Base[Document | None]):
    """A type or nothing."""


class OfAny(Base[Any]):
    """Everything."""


class OfObject(Base[object]):
    """Everything, said in another way."""


class OfText(Base["Document"]):
    """A name that nobody has looked up."""


class OfLiteral(Base[Literal["a"]]):
    """A value."""


class OfAnnotated(Base[Annotated[Document, "scanned"]]):
    """A type with a note."""


class OfBox(Base[Box[Document]]):
    """A generic class with its variable bound."""


DocumentId = NewType("DocumentId", str)


class OfNewType(Base[DocumentId]):
    """A name for a text."""


class Torn(Middle[Document], Logging[Picture]):
    """Two ways up that contradict each other."""


class StatedList(Base):  # type: ignore[type-arg]  # the mistake that is refused
    """A container, said in so many words."""

    params_type = list[Document]


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (Raw, "leaves the type variable ~P unbound"),
        (Unbound, "leaves the type variable ~Q unbound"),
        (OfList, "Document], which is not a plain class"),
        (OfOpenList, "accepts list[~T], which is not a plain class"),
        (ClosedOpenList, "which is not a plain class"),
        (OfUnion, "which is not a plain class"),
        (OfOptional, "which is not a plain class"),
        (OfAny, "accepts everything"),
        (OfObject, "accepts everything"),
        (OfText, "accepts ForwardRef('Document'), which is not a plain class"),
        (OfLiteral, "which is not a plain class"),
        (OfAnnotated, "which is not a plain class"),
        (OfBox, "which is not a plain class"),
        (OfNewType, "which is not a plain class"),
        (Torn, "accepts Document by one base and Picture by another"),
        (StatedList, "which is not a plain class"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_type_that_cannot_be_routed_is_refused_with_the_override(cls: type[AnyHandler], problem: str) -> None:
    """Routing is by exact type: anything but one plain class is refused, and told what to write."""
    with pytest.raises(ConfigError) as caught:
        resolve(cls())
    message = str(caught.value)
    assert message.startswith(f"{cls.__name__} ")
    assert problem in message
    assert "TaskHandler[DocumentRequest]" in message
    assert "params_type = DocumentRequest" in message


def test_raw_root_says_nothing_at_all() -> None:
    """A class that derives from ``TaskHandler`` without brackets is told to write them."""

    class Bare(TaskHandler):  # type: ignore[type-arg]  # the mistake that is refused
        key = "test:bare"

        def submit(self, params: Any, context: SubmitContext) -> SubmitResult:
            raise NotImplementedError

        def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="Bare does not say which request type it accepts"):
        params_type_of(Bare)


# Well-formed handlers.


def variant(**attributes: Any) -> AnyHandler:
    """Return a handler whose class has these attributes."""
    return type("Variant", (Direct,), attributes)()  # type: ignore[no-any-return]  # made of a handler class


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"key": None}, "has no key"),
        ({"key": " "}, "key must be a text"),
        ({"key": "a\nb"}, "key must be a text"),
        ({"provider": ""}, "provider must be a text"),
        ({"account": None}, "account must be a text"),
        ({"resubmit": "always"}, "resubmit must be one of"),
        ({"keep_params": True}, "keep_params must be one of"),
        ({"poll": 5}, "poll must be a PollPolicy"),
        ({"call_limit": 120}, "call_limit must be a positive timedelta"),
        ({"call_limit": timedelta()}, "call_limit must be a positive timedelta"),
        ({"lookup_delay": timedelta()}, "lookup_delay must be a positive timedelta or None"),
        ({"max_job_time": None}, "max_job_time must be a timedelta of 0 or more"),
        ({"not_found_limit": 0}, "not_found_limit must be a whole number from 1"),
        ({"not_found_limit": True}, "not_found_limit must be a whole number from 1"),
        ({"local_files": "yes"}, "local_files must be True or False"),
        ({"default_limits": [Limit(account="*", live=1)]}, "default_limits must be a tuple of Limit"),
        ({"default_limits": (Rate(1),)}, "default_limits must be a tuple of Limit"),
    ],
    ids=str,
)
def test_badly_formed_handler_is_refused_at_registration(attributes: dict[str, Any], problem: str) -> None:
    """A wrong attribute is a configuration error that names it, not a surprise at run time."""
    with pytest.raises(ConfigError, match=problem):
        check_handler(variant(**attributes))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Direct, r"the class Direct; have you forgotten the \(\)\?"),
        (Plain(), "derive its class from TaskHandler"),
        (None, "derive its class from TaskHandler"),
    ],
)
def test_what_is_no_handler_is_refused(value: object, problem: str) -> None:
    """A class instead of an instance is the usual slip."""
    with pytest.raises(ConfigError, match=problem):
        resolve(value)


def test_capabilities_are_there_when_they_are_defined() -> None:
    """``cancel`` and ``lookup`` are optional; a subclass gives one up with ``= None``."""

    class Able(Direct):
        def cancel(self, params: QueryParams, context: QueryContext) -> None:
            """Ask the vendor to stop."""

        def lookup(self, params: Document, context: SubmitContext) -> None:
            """Ask for the job of a key."""

    class Unable(Able):
        cancel = None  # type: ignore[assignment]  # how a capability is given up

    assert (Direct().has_cancel, Direct().has_lookup) == (False, False)
    assert (Able().has_cancel, Able().has_lookup) == (True, True)
    assert (Unable().has_cancel, Unable().has_lookup) == (False, True)


def test_traits_are_what_the_life_cycle_needs() -> None:
    """They are copied to each task, for any worker; a lookup never comes before a call's end."""
    handler = variant(
        resubmit="idempotent",
        call_limit=timedelta(seconds=60),
        lookup_delay=timedelta(seconds=5),
        max_job_time=timedelta(),
        not_found_limit=7,
        keep_params="accepted",
    )
    assert handler.traits == HandlerTraits(
        resubmit="idempotent",
        lookup_delay=timedelta(seconds=60),
        max_job_time=timedelta(),
        not_found_limit=7,
        keep_params="accepted",
    )
    assert variant(lookup_delay=timedelta(hours=1)).traits.lookup_delay == timedelta(hours=1)
    assert Direct().traits == HandlerTraits()


def test_provider_is_the_key_unless_it_is_named() -> None:
    """Limits of one vendor can cover several handlers."""
    assert Direct().provider_key == "test:direct"
    assert variant(provider="acme").provider_key == "acme"


def test_handler_checks_its_defaults() -> None:
    """A handler with nothing but its key is complete, takes what its type takes, and says who it is."""
    limits = (Limit(provider="test:direct", side=Side.SUBMIT, rate=Rate(5)),)
    handler = variant(default_limits=limits, poll=PollPolicy.ramp(), local_files=True)
    assert check_handler(handler) is handler
    handler.validate(Document())
    assert repr(Direct()) == "<Direct 'test:direct'>"
    resolved = resolve(Direct())
    assert (resolved.key, resolved.handler.key) == ("test:direct", "test:direct")
