"""Produce, consume, load: the three things there are, on local files. Needs the [spark] extra and Java 17.

python examples/quickstart.py [folder]
"""

import json
import sys
import tempfile
from pathlib import Path

from buffer import Consumer, ConsumerConfig, Producer, ProducerConfig
from buffer_delta import Loader, LoaderConfig, spark_session

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quickstart-")).resolve()

# Produce: entries are bytes. They are durable when the handle says so, not before.
orders = [json.dumps({"id": n, "item": f"item {n % 7}", "price": n / 4}).encode() for n in range(1000)]
for queue in ("to-consume", "to-load"):  # one queue feeds one consumer or one loader, so here are two
    with Producer(ProducerConfig(store=str(folder / queue), compression="zstd")) as producer:
        handle = producer.produce(orders, metadata=b"from the quickstart")
        durable = handle.watcher.await_durable(timeout=30)
        print(f"produced {len(orders)} entries as batch {durable.sequence} of {queue}")

# Consume: in order, at least once. What was acked does not come again.
with Consumer.new(ConsumerConfig(store=str(folder / "to-consume"))) as consumer:
    while (batch := consumer.next_batch()) is not None:
        print(f"consumed batch {batch.sequence}: {len(batch)} entries, the first is {batch.entries[0].decode()}")
        consumer.ack(batch.sequence)

# Load: into a Delta table, exactly once. Run it as often as you like: it goes on where the table says.
spark = spark_session("quickstart")
config = LoaderConfig(
    store=str(folder / "to-load"),
    table=str(folder / "orders"),
    format={"type": "json", "schema": "id BIGINT, item STRING, price DOUBLE"},
)
for attempt in ("first", "second"):
    progress = Loader(spark, config).run(available_now=True)
    print(f"{attempt} run: {progress or 'there was nothing left to load'}")

spark.read.format("delta").load(config.table).groupBy("item").agg({"price": "sum"}).orderBy("item").show()
print(f"everything is in {folder}")
