"""Delta's ways to say that a commit of somebody else came between and ours did not happen."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError

_CONFLICTS = frozenset(
    {
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "DeltaConcurrentModificationException",
        "MetadataChangedException",
        "ProtocolChangedException",
    }
)


def conflict_name(error: BaseException) -> str | None:
    """Delta's name for a commit conflict, from either kind of exception that Python may see."""
    names = [cls.__name__ for cls in type(error).__mro__]
    java = getattr(error, "java_exception", None) if isinstance(error, Py4JJavaError) else None
    while java is not None:
        names.append(java.getClass().getSimpleName())
        java = java.getCause()
    return next((name for name in names if name in _CONFLICTS), None)
