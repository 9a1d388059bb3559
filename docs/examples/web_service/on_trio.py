"""A web service that takes jobs and works on them, in one process. Run: hypercorn -k trio on_trio:app"""

import os
from contextlib import asynccontextmanager

import trio

from quorumq.client import connect

NODES = os.environ.get("QUORUMQ_NODES", "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403").split(",")


async def resize(message):
    await trio.sleep(0.1)  # your work
    print("resized", message.payload.decode())


@asynccontextmanager
async def jobs():
    stopping = trio.Event()

    async def work():
        worked = await client.work("photos", "resizers", resize, concurrency=8, stop=stopping)
        print(f"stopped: {worked.done} done, {worked.dead_lettered} given up")

    async with connect(NODES) as client, trio.open_nursery() as nursery:
        nursery.start_soon(work)
        try:
            yield client
        finally:
            stopping.set()  # SIGTERM is the server's: it finishes its requests, and then comes here


# The rest is ASGI by hand.


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        async with jobs() as app.client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "http":
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        job = await app.client.publish("photos", body)  # it is stored: the answer may say so
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": f"{job}\n".encode()})
