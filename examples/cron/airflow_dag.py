"""The same as an Airflow DAG: every ten minutes, one run at a time, and no retry where a person must look."""

import subprocess
from datetime import datetime, timedelta

from airflow.exceptions import AirflowFailException
from airflow.sdk import dag, task

LOAD = ["buffer-delta", "load", "--config", "/etc/buffer/buffer.toml", "--available-now", "--log-format", "json"]
NOT_AGAIN = {2: "bad settings", 3: "fenced by another loader", 4: "blocked", 5: "a gap, or lost state"}


@dag(schedule=timedelta(minutes=10), start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)
def buffer_load() -> None:
    @task(retries=3, retry_delay=timedelta(minutes=1), execution_timeout=timedelta(hours=2))
    def load() -> None:
        code = subprocess.run(LOAD, check=False).returncode
        if code in NOT_AGAIN:
            raise AirflowFailException(f"exit code {code}: {NOT_AGAIN[code]}")
        if code:
            raise RuntimeError(f"exit code {code}: it goes on where the table says it stopped")

    load()


buffer_load()
