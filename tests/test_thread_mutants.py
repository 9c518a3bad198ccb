"""The tests with real threads are tested by breaking the code under them: each break is found by the test it names.

A break may show as a failure or as a test that never ends. What has not ended after some time is taken for the latter:
on a busy machine that is too early at worst, and then a break is called found that was not. No test is red for it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.nets import HANGS_S
from tests.thread_mutants import FAILS, HANGS, MUTANTS, VARIABLE


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.thorough
def test_should_find_mutant(name: str) -> None:
    found_by = MUTANTS[name].found_by
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.thread_mutants", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, found_by],
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )
    assert ran.returncode == 1, f"{name} survived: {ran.stdout}"
    assert any(f"{how} {found_by}" in ran.stderr for how in (FAILS, HANGS)), ran
