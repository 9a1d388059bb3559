"""Publish jobs that are due later, and do each when it is due."""

import sys
from datetime import timedelta

import trio

from quorumq.client import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


async def remind(message):
    print("time for", message.payload.decode())


async def main():
    async with connect(NODES) as client:
        await client.create_topic("reminders")
        await client.publish("reminders", b"the oven", delay=timedelta(seconds=1))
        await client.publish("reminders", b"the tea", delay=0.5)
        await client.work("reminders", "bells", remind)


trio.run(main)
