"""Have two groups read every order: one bills, one packs. Try: quorumq publish orders pretzels"""

import asyncio
import sys

from quorumq.client.aio import Task, connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


async def bill(message):
    print("billed", message.payload.decode())


async def pack(message):
    await asyncio.sleep(0.1)  # slow, and no concern of the other group
    print("packed", message.payload.decode())


async def main():
    async with connect(NODES) as client:
        await client.create_topic("orders")
        for group in ("billing", "packing"):  # before the first order: what a group is there for, it gets
            await client.create_group("orders", group)
        tasks = [Task("orders", "billing", bill), Task("orders", "packing", pack, concurrency=4)]
        await client.work_all(tasks)  # in one process here; as well in two, or in ten of each


asyncio.run(main())
