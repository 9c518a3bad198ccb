"""A call that a signal's handler ends by raising, at any moment of it."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable
from types import FrameType


class Raised(BaseException):
    """By a signal's handler, as KeyboardInterrupt is."""


def _raise() -> None:
    raise Raised


def raising_at(
    moment: int, call: Callable[[], object], *, within: str = "", act: Callable[[], object] = _raise
) -> bool:
    """Whether there were so many moments in a call: there, this raises as a signal's handler would, or acts.

    Handlers run where a function of Python begins and where one of C has returned. Only files whose path has `within`
    count. Generators do not: one that is dropped runs once more, and nobody hears what is raised in it then.
    """
    seen = 0

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        code = frame.f_code
        if event not in ("call", "c_return") or within not in code.co_filename or code.co_flags & inspect.CO_GENERATOR:
            return
        if code is not call.__code__:  # type: ignore[attr-defined]
            seen += 1
            if seen == moment:
                act()

    gc.disable()  # nor do destructors of earlier rounds run in there, in which nobody hears of it
    sys.setprofile(profile)
    try:
        call()
    except Raised:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen >= moment
