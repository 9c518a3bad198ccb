"""What Java says to everybody in every start is left out; all else that it says comes through, late or early."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from buffer_delta.cli.java_noise import without_java_noise

JAVA = """
import sys
def say(text): sys.stderr.write(text); sys.stderr.flush()
say("WARNING: Using incubator modules: jdk.incubator.vector\\n")
say("WARNING: something else\\nhalf a ")
if sys.argv[1] == "dies": sys.exit("line, and it dies")
sys.stdin.readline()
say("line, long after the block")
"""


def java(how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", JAVA, how], stdin=subprocess.PIPE)


def test_should_leave_out_what_everybody_hears_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    with without_java_noise():
        process = java("lives")
    os.write(2, b"our own words\n")
    heard = capfd.readouterr().err
    assert "our own words\n" in heard, "at once, not by way of the pump"
    process.communicate(b"\n")
    while not heard.endswith("after the block"):
        heard += capfd.readouterr().err
    assert heard.endswith("half a line, long after the block")
    assert "incubator" not in heard


def test_should_have_said_why_it_did_not_start_before_the_error_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="it ended"), without_java_noise():  # noqa: PT012
        java("dies").communicate()
        raise RuntimeError("it ended")
    assert capfd.readouterr().err == "WARNING: something else\nhalf a line, and it dies\n"


def test_should_escape_what_drives_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """A record in an error of Spark's, say."""
    hostile = "at \\x1b[31m \\xc2\\x9b \\xe2\\x80\\xae \\xff \\r\\tint\\xc3\\xa9gral\\n"
    script = f"import sys; sys.stderr.buffer.write(b'{hostile}')"
    with without_java_noise():
        process = subprocess.Popen([sys.executable, "-c", script])
    process.wait()
    heard = ""
    while not heard.endswith("\n"):
        heard += capfd.readouterr().err
    assert heard == "at \\x1b[31m \\x9b \\u202e \\xff \\r\tintégral\n"
