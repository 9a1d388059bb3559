"""Make two thumbnails of each upload, each exactly once. Try: quorumq publish uploads cat.png"""

import sys

import trio

from quorumq.client import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


async def main():
    async with connect(NODES) as client:
        await client.create_topic("uploads")
        await client.create_topic("thumbnails", partitions=4)

        async def shrink(message):
            small, large = b"small " + message.payload, b"large " + message.payload
            await client.publish("thumbnails", small, derived_from=message)
            await client.publish("thumbnails", large, derived_from=message, index=1)

        await client.work("uploads", "shrinkers", shrink, concurrency=8)


trio.run(main)
