"""One tree; errors carry facts and arrive whole in another process."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator

import pytest

from buffer import errors
from buffer.errors import BufferQueueError, InvalidConfig, InvalidInput, ObjectNotFound, StorageError


def _tree(cls: type[BufferQueueError] = BufferQueueError) -> Iterator[type[BufferQueueError]]:
    yield cls
    for below in cls.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below)


def _sent(error: BufferQueueError) -> BufferQueueError:
    """The error as another process receives it."""
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert isinstance(received, BufferQueueError)
    return received


class TwoArguments(Exception):
    """Like many a library's: it pickles, but cannot be rebuilt from its one argument."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


@pytest.mark.parametrize("cls", list(_tree()), ids=lambda cls: cls.__name__)
def test_should_keep_message_facts_and_cause_when_pickled(cls: type[BufferQueueError]) -> None:
    declared = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    error = cls("what happened, and the way out", **{name: f"the {name}" for name in declared})
    error.__cause__ = ConnectionResetError("gone")
    error.add_note("seen on executor 3")
    received = _sent(error)
    assert str(received) == received.message == "what happened, and the way out"
    for name in declared:
        assert getattr(received, name) == f"the {name}"
    assert isinstance(received.__cause__, ConnectionResetError)
    assert received.__notes__ == ["seen on executor 3"]
    assert str(_sent(received)) == str(error)


def test_should_hold_every_public_error_in_the_tree() -> None:
    public = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)}
    assert public == set(_tree())
    assert "BufferError" not in vars(errors)  # a builtin that means something else


def test_should_draw_the_whole_tree_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    for cls in _tree():
        assert cls.__name__ in errors.__doc__


def test_should_arrive_when_the_cause_cannot() -> None:
    for cause in (TwoArguments(7, "out of reach"), _with_attribute(lambda: None)):
        error = StorageError("cannot read 'a'", location="a", retryable=True)
        error.__cause__ = cause
        received = _sent(error)
        assert isinstance(received, StorageError)
        assert received.location == "a"
        assert type(cause).__qualname__ in str(received.__cause__)
        assert str(cause) in str(received.__cause__)


def _with_attribute(value: object) -> Exception:
    error = ValueError("with baggage")
    error.baggage = value  # type: ignore[attr-defined]  # the point of the test
    return error


def test_should_arrive_when_a_fact_cannot() -> None:
    received = _sent(InvalidConfig("store=… is not allowed", key="store", value=lambda: None))
    assert isinstance(received, InvalidConfig)
    assert received.key == "store"
    assert "lambda" in received.value


def test_should_have_none_where_a_fact_is_not_known() -> None:
    error = ObjectNotFound("there is no object 'a'", location="a")
    assert error.location == "a"
    assert error.url is None


def test_should_refuse_facts_that_the_class_does_not_declare() -> None:
    with pytest.raises(AssertionError, match="sequence"):
        ObjectNotFound("x", sequence=1)


def test_should_be_a_value_error_when_the_call_is_wrong() -> None:
    assert issubclass(InvalidInput, ValueError)
