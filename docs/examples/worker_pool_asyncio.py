"""Work on the messages of a topic, eight at a time, until Ctrl-C or SIGTERM. Try: quorumq publish images cat.png"""

import asyncio
import sys

from quorumq.client.aio import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


async def resize(message):
    await asyncio.sleep(0.1)  # your work
    print("resized", message.payload.decode())


async def main():
    async with connect(NODES) as client:
        await client.create_topic("images", max_deliveries=5, backoff=[1.0, 10.0, 60.0])
        worked = await client.work(
            "images", "resizers", resize, concurrency=8, retry=(TimeoutError, ConnectionError), timeout=60.0
        )
        print(f"stopped: {worked.done} done, {worked.dead_lettered} given up")


asyncio.run(main())
