"""A webhook receiver: whoever sends may repeat a request as often as he likes, it is in the queue once.

    python examples/webhook.py --store ./queue --port 8080
    curl -X POST localhost:8080/shop-7/41 -d '{"order": 12}'

The path names the sender and the number of the request among his: `/{client_id}/{client_seq}`. He sends one request
after the other, repeats it until he gets a 200, and only then goes on to the next number. So a reply that was lost, a
receiver that was killed, or a second receiver behind the same balancer never makes a double.

    200   it is in the queue, from now on or from an earlier attempt
    409   the number was passed over: a later one of the same sender is in the queue, and this one is not
    411   send it with a Content-Length
    503   not now: send it again
"""

import argparse
import json
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from buffer import BufferQueueError, Producer, ProducerConfig
from buffer.errors import IdempotencyConflict, InvalidInput, ProducerStopped

SENDERS_MAX = 100  # producers that stay open; each has a few threads
BODY_BYTES_MAX = 1 << 20


class Sender:
    """One client: its producer, opened when needed, and a lock, for its requests come one after the other."""

    def __init__(self, config: ProducerConfig, client_id: str) -> None:
        self._config, self._client_id = config, client_id
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def receive(self, client_seq: int, body: bytes) -> tuple[int, dict[str, object]]:
        with self._lock:
            for _ in range(2):  # a producer that was overtaken by another receiver is opened again: it knows more then
                try:
                    self._producer = self._producer or Producer(self._config, client_id=self._client_id)
                    durable = self._producer.produce([body], client_seq=client_seq).watcher.await_durable()
                    return 200, {"sequence": durable.sequence}
                except IdempotencyConflict as conflict:
                    if conflict.in_queue:
                        return 200, {"repeated": True}
                    if conflict.in_queue is False:
                        return 409, {"error": str(conflict), "durable_seq": conflict.durable_seq}
                    self._close()
                except ProducerStopped:
                    self._close()
                except InvalidInput as error:
                    return 400, {"error": str(error)}
                except BufferQueueError as error:
                    self._close()
                    return 503, {"error": str(error)}
            return 503, {"error": "another receiver works for the same sender: send it again"}

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close()
            except BufferQueueError as error:  # every sender was told, or will ask again
                print(f"closing the producer of {self._client_id!r}: {error}")


class Receiver:
    """The senders that were heard of last."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._senders: OrderedDict[str, Sender] = OrderedDict()

    def receive(self, client_id: str, client_seq: int, body: bytes) -> tuple[int, dict[str, object]]:
        with self._lock:
            sender = self._senders.setdefault(client_id, Sender(self._config, client_id))
            self._senders.move_to_end(client_id)
            idle = self._senders.popitem(last=False)[1] if len(self._senders) > SENDERS_MAX else None
        if idle is not None:
            idle.close()
        return sender.receive(client_seq, body)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()


def make_server(port: int, receiver: Receiver) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            client_id, _, number = self.path.strip("/").rpartition("/")
            said = self.headers.get("Content-Length", "")
            length = int(said) if said.isascii() and said.isdecimal() else -1
            if length < 0:  # chunked, say: what was not read would be missing in the queue, and told as received
                status, answer = 411, {"error": "send a Content-Length"}
            elif not number.isdecimal() or not client_id or length > BODY_BYTES_MAX:
                status, answer = 400, {"error": f"POST /client_id/client_seq with up to {BODY_BYTES_MAX} bytes"}
            else:
                body = self.rfile.read(length)
                if len(body) < length:  # cut off: half of it must not take the number that the whole is sent under next
                    return
                status, answer = receiver.receive(client_id, int(number), body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: object) -> None:
            """Quiet: whoever sends keeps the log."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description="Receive webhooks into a queue, each once.")
    parser.add_argument("--store", required=True, help="where the queue lies: a path or s3://bucket/path")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    config = ProducerConfig(store=options.store, flush_interval_ms=5, upload_concurrency=1, max_depth=100_000)
    receiver = Receiver(config)
    server = make_server(options.port, receiver)
    print(f"listening on 127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopping")
    finally:
        server.server_close()
        receiver.close()


if __name__ == "__main__":
    main()
