"""Have dead letters that timed out tried again, ten a second. Others stay where they are."""

import sys

import trio

from quorumq.client import NotFound, connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]
RATE = 10.0


async def main():
    async with connect(NODES) as client:
        count = 0
        async for item in client.peek("mails", "senders", "dead", complete=True):
            death, span = item.peeked.record.death, item.peeked.span
            if death.error_class == "TimeoutError":
                redriven = await client.redrive("mails", "senders", [item])
                count += redriven.messages
                await trio.sleep(span.size / RATE)
        print(f"redriven: {count}")


try:
    trio.run(main)
except NotFound as error:
    sys.exit(f"nothing to redrive: {error}")
