"""The webhook receiver as a Starlette app, for whoever serves HTTP with uvicorn or hypercorn anyway.

    pip install starlette uvicorn
    BUFFER_STORE=./queue uvicorn --app-dir examples --factory webhook_app:make_app --port 8080
    curl -X POST localhost:8080/shop-7/41 -d '{"order": 12}'

Paths and answers are those of `webhook.py`, and so is the `Receiver`: one producer for each sender, whose name is its
client id, so a request that is repeated under its number is in the queue once. Any number of these may run behind one
balancer (`--workers 4`).
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from webhook import BODY_BYTES_MAX, Receiver

from buffer import ProducerConfig


async def body_of(request: Request) -> bytes:
    """All of it, unless that is too much."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"up to {BODY_BYTES_MAX} bytes")
    return bytes(body)


async def receive(request: Request) -> JSONResponse:
    body = await body_of(request)
    client_id, client_seq = request.path_params["client_id"], request.path_params["client_seq"]
    # In a thread: it waits until the request is durable, and the others of the same sender wait for it.
    status, answer = await run_in_threadpool(request.app.state.receiver.receive, client_id, client_seq, body)
    return JSONResponse(answer, status)


def make_app(store: str | None = None) -> Starlette:
    config = ProducerConfig(
        store=store or os.environ["BUFFER_STORE"], flush_interval_ms=5, upload_concurrency=1, max_depth=100_000
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.receiver = Receiver(config)
        yield
        await run_in_threadpool(app.state.receiver.close)

    return Starlette(routes=[Route("/{client_id:str}/{client_seq:int}", receive, methods=["POST"])], lifespan=lifespan)
