"""Whose fault a failed job can be, by what it says."""

from __future__ import annotations

import errno
import time
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from buffer.errors import CorruptBatch, InvalidConfig, ObjectNotFound, StorageError
from buffer_delta.errors import ConcurrentCommit, SchemaMismatch
from buffer_delta.spark.blame import brief, fault_of

CRASH = "Job aborted due to stage failure: Task 0 failed 1 times: Python worker exited unexpectedly (crashed)\n\tat org"
RAISED = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "format.py", line 7, in parse
AttributeError: 'str' object has no attribute 'items'
"""
FETCH = """Traceback (most recent call last):
buffer.errors.StorageError: no answer
The above exception was the direct cause
buffer.errors.ObjectNotFound: no object 'ingest/1.batch'
"""


FROM_WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "orders.py", line 7, in order"""


class Java:
    """A Java exception, as Py4J shows it."""

    def __init__(self, kind: str, message: str | None, cause: Java | None = None) -> None:
        self._kind, self._message, self._cause = kind, message, cause

    def getClass(self) -> Java:
        return self

    def getName(self) -> str:
        return self._kind

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> Java | None:
        return self._cause


class Captured(Exception):
    """As PySpark raises it: the text has everything, the stack too."""

    def __init__(self, java: Java) -> None:
        self._origin = java
        super().__init__(f"{java.getMessage()}\n\nJVM stacktrace:\n…")


STAGE = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 3.0 (TID 7) (10.0.0.1 executor driver): "
)
SPARK = "org.apache.spark.SparkException"
PYTHON = "org.apache.spark.api.python.PythonException"


def aborted(*causes: tuple[str, str]) -> Captured:
    """A job that failed for these, the innermost last."""
    found: Java | None = None
    for kind, message in reversed(causes):
        found = Java(kind, message, found)
    kind, message = causes[0] if causes else ("", "")
    return Captured(Java(SPARK, f"{STAGE}{kind}: {message}\n\tat org.apache\n", found))


@pytest.mark.parametrize(
    "error",
    [
        PySparkException(FETCH),
        PySparkException("buffer.errors.CorruptBatch: entry 3"),
        PySparkException(
            "buffer.errors.InvalidConfig: gs://lake/t cannot be opened with the options service_account: no file"
        ),
        PySparkException("java.io.IOException: No space left on device"),
        PySparkException("org.apache.hadoop.security.AccessControlException: Permission denied"),
        PySparkException("java.net.ConnectException: Connection refused"),
        PySparkException("ExecutorLostFailure (executor 3 exited unrelated to the running tasks)"),
        StorageError("no answer", retryable=True),
        ObjectNotFound("gone"),
        CorruptBatch("odd"),
        ConcurrentCommit("another came first"),
        Py4JNetworkError("Answer from Java side is empty"),
        OSError(errno.ENOSPC, "No space left on device"),
        aborted((PYTHON, FETCH)),
        aborted((PYTHON, "Traceback (most recent call last):\n  File\nOSError: [Errno 28] No space left on device")),
        aborted(("java.io.IOException", "x"), ("java.net.ConnectException", "Connection refused")),
        aborted(("java.io.FileNotFoundException", "/tmp/blockmgr/a (Too many open files)")),
        aborted(("java.nio.file.FileSystemException", "/t/p=a: Read-only file system")),
        aborted(("software.amazon.awssdk.services.s3.model.S3Exception", "Access Denied")),
        aborted(("org.apache.spark.shuffle.FetchFailedException", "gone")),
        PySparkException(f"{STAGE}java.net.SocketTimeoutException: Read timed out"),
        Captured(Java(SPARK, f"{STAGE}ExecutorLostFailure (executor 3 exited unrelated to the running tasks) …")),
        Captured(Java(SPARK, "Job 7 cancelled because SparkContext was shut down")),
    ],
)
def test_should_know_what_the_machines_do(error: Exception) -> None:
    assert fault_of(error) == "infra"


@pytest.mark.parametrize(
    "error",
    [
        PySparkException(CRASH),
        PySparkException(RAISED),
        PySparkException("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"),
        PySparkException("[CAST_INVALID_INPUT] The value 'x' cannot be cast"),
        PySparkException("java.nio.file.InvalidPathException: Nul character not allowed"),
        PySparkException("java.nio.file.FileSystemException: p=…: File name too long"),
        SchemaMismatch("columns of another type"),
        InvalidConfig("transform dropped columns"),
        aborted(
            (SPARK, "Python worker exited unexpectedly (crashed)"), ("java.net.SocketException", "Connection reset")
        ),
        aborted(("java.lang.IllegalArgumentException", "x"), ("java.net.URISyntaxException", "Relative path")),
        aborted(("java.io.IOException", "Mkdirs failed to create file:/t/p=No space left on device")),
        OSError("not a Parquet file"),
    ],
)
def test_should_suspect_the_data_of_everything_else(error: Exception) -> None:
    assert fault_of(error) == "data"


WORDS = [
    *("Connection refused", "Permission denied", "No space left on device", "java.net.ConnectException: no"),
    *("x\njava.net.ConnectException: no", "x\nCaused by: java.net.ConnectException: no", "SparkContext was shut down"),
    *("buffer.errors.StorageError: no answer", "x\nbuffer.errors.StorageError: no answer", f"x\n{FETCH}"),
    *("ExecutorLostFailure (executor 3 exited unrelated to the running tasks)", f"{STAGE}java.net.SocketException: no"),
]


@pytest.mark.parametrize("words", WORDS)
def test_should_not_believe_what_a_record_says(words: str) -> None:
    """Errors quote the record, and it may have copied the text of any error."""
    cast = f'[CAST_INVALID_INPUT] The value \'{words}\' of the type "STRING" cannot be cast to "INT"'
    broken = f"[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint short violated by row:\n - msg : {words}"
    traceback = f'Traceback (most recent call last):\n  File "x.py", line 7, in f\nValueError: {words}'
    quoting: list[Any] = [
        PySparkException(cast),
        PySparkException(broken),
        PySparkException(traceback),
        ValueError(words),
        aborted(("org.apache.spark.SparkNumberFormatException", cast)),
        aborted(("org.apache.spark.sql.delta.schema.DeltaInvariantViolationException", broken)),
        aborted((SPARK, "[FAILED_EXECUTE_UDF] …"), (PYTHON, traceback)),
        aborted(("java.io.IOException", f"Mkdirs failed to create file:/t/p={words}")),
        aborted(("java.io.FileNotFoundException", f"File does not exist: /t/p={words} (Permission denied)")),
    ]
    found = [fault_of(error) for error in quoting]
    assert set(found) == {"data"}, found


@pytest.mark.parametrize("text", ["ExecutorLostFailure ", "Error", "a.", "Error.", "[", "[A", "Job 7 ", " ", "\n"])
def test_should_not_take_long_over_a_long_text(text: str) -> None:
    """What is looked at is cut, so that ten times the text takes no longer; quadratic work would take 100 times."""

    def worked_s(length: int) -> float:
        error, started = PySparkException("x\n" + text * (length // len(text))), time.process_time()
        assert fault_of(error) == "data"
        assert len(brief(error)) <= 2_001
        return time.process_time() - started

    assert worked_s(4_000_000) < 20 * worked_s(400_000) + 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Exception(CRASH), "Python worker exited unexpectedly, as if killed: the process that read it ended"),
        (Exception(RAISED), "AttributeError: 'str' object has no attribute 'items'"),
        (Exception(FETCH), "buffer.errors.ObjectNotFound: no object 'ingest/1.batch'"),
        (
            Exception("[TASK_WRITE_FAILED] Task failed\n[CAST_INVALID_INPUT] The value 'x' …\nmore"),
            "[CAST_INVALID_INPUT] The value 'x' …",
        ),
        (Exception("[TASK_WRITE_FAILED]\n[RESERVED_X] \nThe write has …\nmore"), "[RESERVED_X]  The write has …"),
        *(
            (Captured(Java("org.apache.spark.api.python.PythonException", f"{FROM_WORKER}\n{said}\n")), line)
            for said, line in (
                ("shop.BadOrder: no customer\nin: {}", "shop.BadOrder: no customer"),  # whatever a user calls it
                ("SystemExit: 3", "SystemExit: 3"),
                ("StopIteration", "StopIteration"),
                (f"KeyError: 1\n\nThe above exception was …\n\n{FROM_WORKER}\nshop.Bad: x", "shop.Bad: x"),
                ("ValueError: two\nodd.OtherError: lines", "ValueError: two"),
            )
        ),
        (
            Captured(
                Java("x.SparkException", "[TASK_WRITE_FAILED] Task failed", Java("java.lang.StackOverflowError", None))
            ),
            "java.lang.StackOverflowError",
        ),
        (Exception("odd\nlines"), "odd"),
        (Exception(), "Exception()"),
    ],
)
def test_should_say_it_in_one_line(error: Exception, line: str) -> None:
    assert brief(error) == line
