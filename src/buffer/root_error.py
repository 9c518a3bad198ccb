"""What all errors of this project share: a message, facts as attributes, and a way through pickling."""

from __future__ import annotations

import inspect
import pickle
from typing import Any


class BufferQueueError(Exception):
    """Root of the tree. `str(error)` says what happened, names the value, and says the way out."""

    _declared = frozenset[str]()
    """The facts that a class of errors has: its annotations, and those of its bases."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = (name for base in cls.__mro__ for name in inspect.get_annotations(base))
        cls._declared = frozenset(names)

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        unknown = facts.keys() - self._declared
        assert not unknown, f"{type(self).__name__} declares no fact named {sorted(unknown)}"
        self._facts = facts
        for name in self._declared:
            setattr(self, name, facts.get(name))

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def facts(self) -> dict[str, Any]:
        """What was given besides the message."""
        return dict(self._facts)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: _portable(value, repr(value)) for name, value in self._facts.items()}
        cause = _portable(self.__cause__, Exception(f"{type(self.__cause__).__qualname__}: {self.__cause__}"))
        return _rebuild, (type(self), self.message, facts, cause, getattr(self, "__notes__", []))


def _portable(value: Any, substitute: Any) -> Any:
    """The value if it survives pickling, else the substitute: a foreign cause must not hide the error itself."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  (whatever a foreign class raises when it is pickled or rebuilt)
        return substitute
    return value


def _rebuild(
    cls: type[BufferQueueError],
    message: str,
    facts: dict[str, Any],
    cause: BaseException | None,
    notes: list[str],
) -> BufferQueueError:
    error = cls(message, **facts)
    error.__cause__ = cause
    for note in notes:
        error.add_note(note)
    return error
