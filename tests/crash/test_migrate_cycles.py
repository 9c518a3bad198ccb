"""`buffer migrate` under kill -9. All of it: `make crash`, or `python -m tests.crash --migrate-cycles 50`."""

from __future__ import annotations

import random
from pathlib import Path

from tests.crash.migrate_cycles import MigrateCycles

KILLS = 4


def test_should_move_each_pair_once_however_often_it_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    verdict = MigrateCycles(tmp_path, seed).run(KILLS)
    assert verdict.violations == [], f"seed {seed}: {verdict}"
