"""The loader as a Spark job: the same program as `buffer-delta load`, with the same options.

    spark-submit examples/loader_job.py --store s3://bucket/queue --table db.events --format json --available-now
    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/loader_job.py --config buffer.toml

The session, its master and its packages are spark-submit's. `python examples/loader_job.py …` works too and
starts a local session. Exit codes are those of `buffer-delta load`: do not restart on 3 at once.
"""

import sys

from buffer_delta.cli import main

if __name__ == "__main__":
    main(["load", *sys.argv[1:]])
