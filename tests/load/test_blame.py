"""Whose fault a failed job can be, by what it says."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    "error",
    [
        Exception(FETCH),
        Exception("buffer.errors.CorruptBatch: entry 3"),
        Exception(
            "buffer.errors.InvalidConfig: gs://lake/t cannot be opened with the options service_account: no file"
        ),
        Exception("java.io.IOException: No space left on device"),
        Exception("org.apache.hadoop.security.AccessControlException: Permission denied"),
        Exception("java.net.ConnectException: Connection refused"),
        Exception("ExecutorLostFailure (executor 3 exited unrelated to the running tasks)"),
        StorageError("no answer", retryable=True),
        ObjectNotFound("gone"),
        CorruptBatch("odd"),
        ConcurrentCommit("another came first"),
    ],
)
def test_should_know_what_the_machines_do(error: Exception) -> None:
    assert fault_of(error) == "infra"


@pytest.mark.parametrize(
    "error",
    [
        Exception(CRASH),
        Exception(RAISED),
        Exception("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"),
        Exception("[CAST_INVALID_INPUT] The value 'x' cannot be cast"),
        Exception("java.nio.file.InvalidPathException: Nul character not allowed"),
        Exception("java.nio.file.FileSystemException: p=…: File name too long"),
        SchemaMismatch("columns of another type"),
        InvalidConfig("transform dropped columns"),
    ],
)
def test_should_suspect_the_data_of_everything_else(error: Exception) -> None:
    assert fault_of(error) == "data"


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
        (Exception("odd\nlines"), "odd"),
        (Exception(), "Exception()"),
    ],
)
def test_should_say_it_in_one_line(error: Exception, line: str) -> None:
    assert brief(error) == line
