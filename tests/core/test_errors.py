"""The tree of errors: what is in it, and that each one survives a journey and says what it must."""

import copy
import inspect
import pickle
from datetime import timedelta
from typing import Any

import attrs
import pytest

from coatcheck import errors
from coatcheck.errors import (
    CoatcheckError,
    DuplicateNameError,
    PayloadTooLargeError,
    UnknownNameError,
    closest,
)

#: The tree as design and docs show it: each class below its parent.
TREE: dict[str, object] = {
    "CoatcheckError": {
        "ConfigError": {
            "UnknownNameError": {},
            "DuplicateNameError": {},
            "PluginError": {},
            "SelectorError": {},
            "StoreConfigError": {},
        },
        "RequestError": {
            "NotPersistableError": {},
            "PayloadTooLargeError": {},
            "ValidationError": {},
            "NoHandlerError": {},
            "AmbiguousHandlerError": {},
            "DedupeConflictError": {},
            "InsufficientBalanceError": {},
        },
        "TaskError": {
            "TaskNotFoundError": {},
            "TaskFailedError": {},
            "TaskCanceledError": {},
            "TrackingTimedOutError": {},
            "SubmitUnknownError": {},
            "WaitTimeoutError": {},
        },
        "StoreError": {
            "StoreUnavailableError": {},
            "StoreFullError": {},
            "LeaseLostError": {},
            "ConflictError": {},
            "NewerRecordError": {},
        },
        "HandlerError": {
            "NotSentError": {},
            "MaybeSentError": {},
            "RejectedError": {},
            "ThrottledError": {},
            "NotReadyError": {},
            "JobNotFoundError": {},
            "VendorError": {},
            "UnsafeUrlError": {},
            "CallbackRefusedError": {},
        },
    }
}

VALUES = {
    str: "text",
    int: 7,
    bool: True,
    tuple[str, ...]: ("a", "b"),
    timedelta: timedelta(seconds=3),
    str | None: "text",
    int | None: 502,
    timedelta | None: timedelta(seconds=9),
}


def classes(root: type[CoatcheckError] = CoatcheckError) -> list[type[CoatcheckError]]:
    """Return the root and everything below it that core defines."""
    below = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(cls for child in below for cls in classes(child))]


def tree_of(root: type[CoatcheckError]) -> dict[str, object]:
    """Return the names below a class, nested."""
    below = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return {root.__name__: {name: sub for child in below for name, sub in tree_of(child).items()}}


def filled(cls: type[CoatcheckError]) -> CoatcheckError:
    """Return an instance whose fields all differ from their defaults."""
    values: list[Any] = [VALUES[attribute.type] for attribute in attrs.fields(cls)]
    return cls(*values)


def test_tree_is_the_one_that_people_were_told() -> None:
    """Adding, moving or dropping a class is a change of the API."""
    assert tree_of(CoatcheckError) == TREE


def test_every_error_of_the_module_is_in_the_tree() -> None:
    """Nothing is raised on purpose that ``except CoatcheckError`` would miss."""
    found = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)}
    assert found == set(classes())


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_error_survives_a_journey(cls: type[CoatcheckError], travel: object) -> None:
    """An error crosses process pools whole: class, message, fields and notes."""
    error = filled(cls)
    error.add_note("seen on host 3")
    assert callable(travel)
    back = travel(error)
    assert type(back) is cls
    assert attrs.asdict(back) == attrs.asdict(error)
    assert (str(back), repr(back), back.__notes__) == (str(error), repr(error), ["seen on host 3"])


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_error_needs_only_its_message(cls: type[CoatcheckError]) -> None:
    """A message alone is enough for any class; ``str`` is the message, ``repr`` names class and fields."""
    error = cls("expected one thing, found another; do a third")
    assert str(error) == "expected one thing, found another; do a third"
    assert repr(error).startswith(f"{cls.__name__}(message='expected one thing")
    for attribute in attrs.fields(cls):
        assert f"{attribute.name}=" in repr(error)


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_error_says_when_it_is_raised(cls: type[CoatcheckError]) -> None:
    """Each class has a docstring of its own, for the reference."""
    assert cls.__dict__["__doc__"]
    assert not cls.__dict__["__doc__"].startswith(("Method generated", cls.__name__ + "("))


def test_errors_are_told_apart_by_identity() -> None:
    """Two errors with equal fields are two events; an error can be a key and be looked for in a list."""
    first, second = filled(errors.VendorError), filled(errors.VendorError)
    assert first != second
    assert len({first, second}) == 2


def test_handlers_errors_say_whether_trying_again_may_help() -> None:
    """What was refused for certain, or leads where no call may go, is final; all else may work later."""
    handlers_errors = [cls("no") for cls in classes(errors.HandlerError)]
    final = {
        type(e).__name__ for e in handlers_errors if isinstance(e, errors.HandlerError) and not e.retryable
    }
    assert final == {"RejectedError", "UnsafeUrlError", "CallbackRefusedError"}


def test_unknown_name_lists_what_there_is_and_the_nearest() -> None:
    """The message says what was expected, what was found and, with a hint, where to get it."""
    error = UnknownNameError.of("handler", "ocr:gite", {"ocr:gitee", "ocr:mineru"}, "Install coatcheck-ocr.")
    assert str(error) == (
        "unknown handler 'ocr:gite'; did you mean 'ocr:gitee'? (known: ocr:gitee, ocr:mineru). "
        "Install coatcheck-ocr."
    )
    assert (error.kind, error.name, error.known) == ("handler", "ocr:gite", ("ocr:gitee", "ocr:mineru"))
    assert str(UnknownNameError.of("store", 3, ())) == "unknown store 3 (known: none)"


def test_nothing_near_is_not_suggested() -> None:
    """A wild guess would send people the wrong way."""
    assert closest("zzz", ["submit", "query"]) == ""
    assert closest("submi", ["submit", "query"]) == "; did you mean 'submit'?"


def test_duplicate_name_shows_both_owners() -> None:
    """Two plugins with one name cannot be repaired without knowing both."""
    error = DuplicateNameError.of("handler", "ocr:gitee", "coatcheck-ocr", "my-plugin")
    assert "'coatcheck-ocr'" in str(error)
    assert "'my-plugin'" in str(error)
    assert (error.kind, error.name) == ("handler", "ocr:gitee")


def test_payload_too_large_says_how_much_there_is_room_for() -> None:
    """The message holds field, size and cap, and the way out."""
    error = PayloadTooLargeError.of("params", 300_000, 262_144)
    assert str(error) == (
        "params may take at most 262144 bytes, found 300000; upload the data first and pass its URL"
    )
    assert (error.field, error.size, error.limit) == ("params", 300_000, 262_144)
