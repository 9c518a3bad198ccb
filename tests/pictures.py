"""The pictures of the status page in the documents, taken of a real loader: `python -m tests.pictures --minutes 10`.

A producer writes orders into a queue on an S3 server, now more, now less, and some that are no JSON; `buffer-delta load
--serve` loads them into tables there. After these minutes the whole page is taken, light on a desk and dark on a phone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.serve.browser import running_browser
from tests.servers import S3Server, run_s3_server

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BAD_EVERY = 2000
WAVE_S = 240.0


def produce(server: S3Server, stop: threading.Event) -> None:
    chance = random.Random(7)
    config = ProducerConfig(store="s3://my-bucket/orders", store_options=server.options, compression="zstd")
    number, begun_s = 0, time.monotonic()
    with Producer(config, client_id="shop") as producer:
        while not stop.wait(0.5):
            rate = 300 + 250 * math.sin((time.monotonic() - begun_s) * 2 * math.pi / WAVE_S)
            orders = []
            for _ in range(int(rate)):
                number += 1
                order = {"id": number, "shop": chance.choice("abc"), "amount": chance.randrange(1, 10_000) / 100}
                orders.append(b"<html>" if number % BAD_EVERY == 0 else json.dumps(order).encode())
            producer.produce(orders)


def settings(server: S3Server, folder: Path, port: int) -> Path:
    options = {key: value for key, value in server.options.items() if isinstance(value, str)}
    lines = [
        "[loader]",
        'store = "s3://my-bucket/orders"',
        'table = "s3a://my-lake/orders"',
        'dead_letters = "s3a://my-lake/orders_dead_letters"',
        'format = { type = "json", schema = "id BIGINT, shop STRING, amount DOUBLE" }',
        "commit_interval_s = 5",
        f'serve = "127.0.0.1:{port}"',
        "[loader.store_options]",
        *(f"{key} = {json.dumps(value)}" for key, value in options.items()),
        "client_options = { allow_http = true }",
    ]
    path = folder / "buffer.toml"
    path.write_text("\n".join(lines))
    return path


def status(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url}/api/status", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (urllib.error.URLError, ConnectionError):
        return {"state": "starting"}


def take(url: str, images: Path) -> None:
    with running_browser() as browser:
        browser.look(url, 1000, 900)
        browser.screenshot(images / "status.png", whole=True)
        browser.look(url, 390, 844, dark=True)
        browser.screenshot(images / "phone.png")


def main() -> int:
    parser = argparse.ArgumentParser(description="Pictures of the status page of a real loader.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--images", type=Path, default=IMAGES)
    parser.add_argument("--port", type=int, default=9464)
    options = parser.parse_args()
    url, stop = f"http://127.0.0.1:{options.port}", threading.Event()
    with tempfile.TemporaryDirectory() as temporary, run_s3_server(Path(temporary)) as server:
        for bucket in ("my-bucket", "my-lake"):
            server.new_bucket(bucket)
        producer = threading.Thread(target=produce, args=(server, stop))
        producer.start()
        config = settings(server, Path(temporary), options.port)
        command = [sys.executable, "-m", "buffer_delta", "load", "--config", str(config)]
        with (Path(temporary) / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as loader:
            try:
                until_s = time.monotonic() + 60 * options.minutes
                while time.monotonic() < until_s or status(url)["state"] not in ("idle", "waiting", "loading"):
                    if loader.poll() is not None:
                        sys.stdout.write((Path(temporary) / "log").read_text())
                        return 1
                    time.sleep(0.5)
                take(url, options.images)
            finally:
                stop.set()
                loader.send_signal(signal.SIGTERM)
        producer.join()
    sys.stdout.write(f"status.png and phone.png are in {options.images}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
