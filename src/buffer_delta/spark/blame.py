"""Whose fault a failed Spark job can be: the machines', as far as that is known, or perhaps the data's.

A wrong "perhaps the data's" costs trials: the failure must repeat, alone, while others pass (`load.isolate`). A wrong
"the machines'" leaves the range to be tried again for ever. So only what is surely theirs is called so.

Judged by the classes of what was raised, never by a search of the text: an error quotes the record that it is about,
and a record may hold any words, a whole traceback too. What is believed of a text is only what no record can have
written: its first words, the first thing raised in a traceback, and how a system's own message ends.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from buffer.errors import BufferQueueError, InvalidInput
from buffer_delta.errors import SchemaMismatch

Fault: TypeAlias = Literal["data", "infra"]

TEXT_MAX = 100_000  # characters of an error that are looked at: it may quote a record of any size
REASON_MAX = 2_000  # characters of what is said of it
CAUSES_MAX = 20  # a chain of causes may be a ring

_OURS = "buffer.errors."
_INFRA_OF_OURS = (
    *("StorageError", "ObjectNotFound", "StoreUnusable", "Throttled", "ContentionError", "CorruptBatch"),
    *("Unsupported", "InvalidConfig"),
)
"""Of what a job says. A batch that the look before could read, and the job cannot: something on the way is wrong. A
setting that only an executor refuses: it lacks what the driver has, the file with a store's keys say."""
_INFRA = re.compile(
    r"java\.net\.(?:Connect|Socket|SocketTimeout|UnknownHost|NoRouteToHost|Bind|PortUnreachable)Exception"
    r"|javax\.net\.ssl\.\w+"
    r"|[\w.]+\.(?:AccessDenied|AccessControl|S3|Amazon\w+|SdkClient|AbfsRestOperation|GoogleJsonResponse)Exception"
    r"|[\w.]+\.(?:FetchFailed|MetadataFetchFailed)Exception|[\w.$]+\$InvalidToken"
    r"|obstore\.exceptions\.(?!InvalidPathError)\w+"
    r"|Connection(?:Refused|Reset|Aborted)?Error|BrokenPipeError|py4j\.protocol\.Py4JNetworkError"
)
"""Classes, Java's and Python's. Not java.net.URISyntaxException, which a partition's value can bring about."""
_REASONS = (
    *("No space left on device", "Disk quota exceeded", "Too many open files", "Input/output error"),
    *("Read-only file system", "Permission denied"),
)
_ERRNO = re.compile(r"\[Errno (\d{1,4})\]")
_ERRNOS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE),
}
_STOPPED = re.compile(r"Job \d+ cancelled|Cannot call methods on a stopped SparkContext")
_LOST = re.compile(r"ExecutorLostFailure \([^()\n]{0,200}(?:unrelated to the running tasks|preempted|decommission)")
_STAGE = re.compile(
    r"(?:org\.apache\.spark\.SparkException: )?Job aborted due to stage failure: (?:"
    r"Task \d+ in stage [\d.]+ failed \d+ times?, most recent failure: Lost task [\d.]+ in stage [\d.]+ "
    r"\(TID \d+\) \([^()\n]{1,300}\): "
    r"|\w+ \d+ \([^\n]{0,300}?\) has failed the maximum allowable number of times: \d+\. "
    r"Most recent failure reason:\s+)"
)
"""What the scheduler says before the failure itself: all of it the machines' own words."""
_CLASS_NAME = re.compile(r"[\w.$]{1,200}")

_CRASH = "Python worker exited unexpectedly"
_RAISED = re.compile(r"\w*(?:Error|Exception|Violation)\w*")
_CONDITION = re.compile(r"\[([A-Z_.]{5,100})\](?:[^\S\n]*\n(?!\[))?[^\n]*")
"""With the next line where nothing else stands in this one."""
_WRAPPERS = ("FAILED_EXECUTE_UDF", "PYTHON_EXCEPTION", "TASK_WRITE_FAILED")
"""What Spark says around the cause."""
_TRACEBACK = "Traceback (most recent call last):"


def fault_of(error: Exception) -> Fault:
    if isinstance(error, BufferQueueError):
        return "data" if isinstance(error, SchemaMismatch | InvalidInput) else "infra"
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return "infra"  # the way to the JVM, or the JVM itself, is gone
    if isinstance(error, OSError):
        return "infra" if error.errno in _ERRNOS or isinstance(error, ConnectionError) else "data"
    if _java_of(error) is None and not isinstance(error, PySparkException):
        return "infra" if _INFRA.fullmatch(f"{type(error).__module__}.{type(error).__qualname__}") else "data"
    for kind, message in _chain(error):
        found = _fault(kind, message)
        if found is not None:
            return found
    return "data"


def brief(error: Exception) -> str:
    """One line: what our own code on the executor said, if it did; else the innermost cause, in Spark's own words."""
    said = _brief(error)
    return said if len(said) <= REASON_MAX else said[:REASON_MAX] + "…"


def _brief(error: Exception) -> str:
    chain = list(_chain(error))
    lines = [line for _, message in chain for line in message.splitlines()]
    ours = [line for line in lines if line.startswith(_OURS)]
    if ours:
        return ours[-1]
    if any(_is_crash(message) for _, message in chain):
        return f"{_CRASH}, as if killed: the process that read it ended"
    text = next((_said(kind, message) for kind, message in reversed(chain) if message), "")
    found = [match[0].replace("\n", " ") for match in _CONDITION.finditer(text) if match[1] not in _WRAPPERS]
    silent = next((kind for kind, message in chain[-1:] if not message), "")  # as of a stack that overflows
    raised = next(filter(_is_raised, reversed(text.splitlines())), "")
    first = next(iter(text.splitlines()), "") or repr(error)
    return (next(iter(found), "") or _last_raised(text) or silent or raised or first).strip()


def _said(kind: str, message: str) -> str:
    return f"{kind.rpartition('.')[2]}: {message}" if kind else message


def _is_raised(line: str) -> bool:
    head, colon, _ = line.partition(": ")
    return bool(colon and _CLASS_NAME.fullmatch(head) and _RAISED.search(head.rpartition(".")[2]))


def _chain(error: Exception) -> Iterator[tuple[str, str]]:
    """Class and message of an error and of its causes in the JVM, the outermost first; "" for a class that is not told.

    Of an error of Python's alone: its text.
    """
    java = _java_of(error)
    if java is None:
        yield "", str(error)[:TEXT_MAX]
    for _ in range(CAUSES_MAX):
        if java is None:
            break
        yield str(java.getClass().getName()), str(java.getMessage() or "")[:TEXT_MAX]
        java = java.getCause()


def _java_of(error: Exception) -> Any:
    """The exception in the JVM behind one that Py4J or PySpark raised; None if there is none."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def _fault(kind: str, message: str) -> Fault | None:
    """What one of a chain tells; None: nothing."""
    stage = _STAGE.match(message)
    if stage is not None:
        kind, message = "", message[stage.end() :]
    if _is_crash(message):
        return "data"  # it may have been killed for its memory; then others fail, too, and nothing is blamed
    if not kind and not message.startswith(_TRACEBACK):
        kind, message = _head(message)
    if message.startswith(_TRACEBACK) or kind.endswith(".PythonException"):
        return "infra" if _is_infra(*_first_raised(message)) else "data"
    return "infra" if _is_infra(kind, message) else None


def _is_crash(message: str) -> bool:
    """Also behind the scheduler's words and a class; an answer of a user's code that ends so is never the machines'."""
    return message[:TEXT_MAX].partition("\n")[0].split(" (crashed)")[0].endswith(_CRASH)


def _is_infra(kind: str, message: str) -> bool:
    if kind.startswith(_OURS):
        return kind.removeprefix(_OURS) in _INFRA_OF_OURS
    if not kind or kind.startswith("org.apache.spark.Spark") or kind.endswith(".IllegalStateException"):
        return bool(_STOPPED.match(message) or _LOST.match(message))
    if _INFRA.fullmatch(kind):
        return True
    number = _ERRNO.match(message)
    if number is not None and kind in ("OSError", "PermissionError", "TimeoutError", "BlockingIOError"):
        return int(number[1]) in _ERRNOS
    return kind.startswith("java.") and _ends_as_the_system_says(kind.rpartition(".")[2], message)


def _ends_as_the_system_says(kind: str, message: str) -> bool:
    """Of Java's errors about files, whose names a record may have chosen: the reason comes after the name."""
    if kind == "IOException":
        return message in _REASONS
    if kind == "FileSystemException":
        return message.rpartition(": ")[2] in _REASONS
    return (
        kind == "FileNotFoundException"
        and message.startswith("/")
        and message.endswith(tuple(f" ({reason})" for reason in _REASONS))
    )


def _first_raised(message: str) -> tuple[str, str]:
    """The class that a Python traceback names first, and its message: the cause of all that follow it.

    What stands before it are files and lines of code, and those are indented. After it, anything may stand.
    """
    return _head(_first_line(message.partition(_TRACEBACK)[2]))


def _last_raised(text: str) -> str:
    """What a Python traceback says at its end, whatever the class is called; "" where there is none."""
    _, found, rest = text.rpartition(_TRACEBACK)
    return _first_line(rest) if found else ""


def _first_line(text: str) -> str:
    """… that is not indented."""
    return next((line for line in text.splitlines() if line and not line[0].isspace()), "")


def _head(text: str) -> tuple[str, str]:
    """The class at the beginning of a text, and what follows; no class: all of it follows."""
    head, colon, rest = text.partition(": ")
    return (head, rest) if colon and _CLASS_NAME.fullmatch(head) else ("", text)
