"""Produce into a queue on S3 and load it into a Delta table on S3, on any S3 server, one on loopback too.

    export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…
    python examples/s3_to_delta.py --bucket my-bucket                                   # Amazon
    python examples/s3_to_delta.py --bucket my-bucket --endpoint http://127.0.0.1:8333  # a server of your own

`spark_session(loads=config)` fetches what `s3a://` needs at its first start (14 MB), and tells Spark the
endpoint and keys of the queue's store, for the bucket of the table.
"""

import argparse
import json
import os

from buffer import Producer, ProducerConfig
from buffer_delta import Loader, LoaderConfig, spark_session

parser = argparse.ArgumentParser(description="A queue and a table on S3.")
parser.add_argument("--bucket", required=True)
parser.add_argument("--endpoint", help="of a server that is not Amazon's")
parser.add_argument("--prefix", default="s3-to-delta", help="folder in the bucket")
given = parser.parse_args()

options = {
    "region": os.environ.get("AWS_REGION", "us-east-1"),
    "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
    "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
}
if given.endpoint:
    options |= {"endpoint": given.endpoint, "client_options": {"allow_http": given.endpoint.startswith("http://")}}
place = f"{given.bucket}/{given.prefix}"

with Producer(ProducerConfig(store=f"s3://{place}/queue", store_options=options)) as producer:
    for number in range(10):
        producer.produce([json.dumps({"id": number * 100 + n, "name": f"sensor {n}"}).encode() for n in range(100)])

config = LoaderConfig(
    store=f"s3://{place}/queue",
    store_options=options,
    table=f"s3a://{place}/events",
    format={"type": "json", "schema": "id BIGINT, name STRING"},
    dead_letters=f"s3a://{place}/events_dead_letters",
)
spark = spark_session("s3-to-delta", loads=config)
Loader(spark, config).run(available_now=True)

table = spark.read.format("delta").load(f"s3a://{place}/events")
print(f"{table.count()} rows, {table.select('_sequence', '_index').distinct().count()} distinct")
table.orderBy("id").show(3)
spark.stop()
