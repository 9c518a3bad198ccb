"""Whose fault a failed Spark job can be: the machines', as far as that is known, or perhaps the data's.

A wrong "perhaps the data's" costs trials: the failure must repeat, alone, while others pass (`load.isolate`). A wrong
"the machines'" leaves the range to be tried again for ever. So only what is surely theirs is called so.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

from py4j.protocol import Py4JJavaError

from buffer.errors import BufferQueueError, InvalidInput
from buffer_delta.errors import SchemaMismatch

Fault: TypeAlias = Literal["data", "infra"]

_OURS = re.compile(r"buffer\.errors\.(\w+)(?:: (.*))?")
_INFRA_OF_OURS = (
    *("StorageError", "ObjectNotFound", "StoreUnusable", "Throttled", "ContentionError", "CorruptBatch"),
    "InvalidConfig",
)
"""Of what a job says. A batch that the look before could read, and the job cannot: something on the way is wrong. A
setting that only an executor refuses: it lacks what the driver has, the file with a store's keys say."""
_INFRA = re.compile(
    r"ExecutorLostFailure.*(?:unrelated to the running tasks|preempted|decommission)"
    r"|java\.net\.|javax\.net\.ssl\.|UnknownHostException|SocketTimeout|Connection (?:refused|reset)"
    r"|No space left on device|Disk quota exceeded|Too many open files|Input/output error|Read-only file system"
    r"|AccessDeniedException|AccessControlException|Permission denied|InvalidToken|ExpiredToken"
    r"|S3Exception|AmazonClientException|AbfsRestOperationException|GoogleJsonResponseException"
    r"|SparkContext was shut down|cancelled because|FetchFailed|MetadataFetchFailedException"
    r"|Connection refused|Py4JNetworkError",
    re.DOTALL,
)
_CRASH = "Python worker exited unexpectedly"
_RAISED = re.compile(r"^(?:[\w.]*\.)?\w*(?:Error|Exception|Violation)\w*: .*", re.MULTILINE)
_CLASS = re.compile(r"\[([A-Z_.]{5,})\][^\n]*")
_WRAPPERS = ("FAILED_EXECUTE_UDF", "PYTHON_EXCEPTION", "TASK_WRITE_FAILED")
"""What Spark says around the cause."""
CAUSES_MAX = 20  # a chain of causes may be a ring


def fault_of(error: Exception) -> Fault:
    if isinstance(error, BufferQueueError):
        return "data" if isinstance(error, SchemaMismatch | InvalidInput) else "infra"
    text = str(error)
    ours = [match[1] for match in _OURS.finditer(text)]
    if any(name in _INFRA_OF_OURS for name in ours):
        return "infra"
    return "infra" if _INFRA.search(text) else "data"


def brief(error: Exception) -> str:
    """One line: what our own code on the executor said, if it did; else the innermost cause, in Spark's own words."""
    text = str(error)
    ours = [match[0] for match in _OURS.finditer(text)]
    if ours:
        return ours[-1]
    if _CRASH in text:
        return f"{_CRASH}, as if killed: the process that read it ended"
    if isinstance(error, Py4JJavaError):
        text = _innermost(error.java_exception)
    found = [match[0] for match in _CLASS.finditer(text) if match[1] not in _WRAPPERS]
    raised = _RAISED.findall(text)
    first = next(iter(text.splitlines()), "") or repr(error)
    return next(iter(found), raised[-1] if raised else first).strip()


def _innermost(java: Any) -> str:
    """What the first of a chain of Java exceptions says; the others say that it happened."""
    said = ""
    for _ in range(CAUSES_MAX):
        if java is None:
            break
        message = java.getMessage()
        said = f"{java.getClass().getSimpleName()}: {message}" if message else said
        java = java.getCause()
    return said
