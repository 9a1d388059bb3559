"""Book each deposit once, however often its message is delivered. Try: quorumq publish deposits 10 20"""

import asyncio
import sqlite3
import sys
from contextlib import closing

from quorumq.client.aio import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def book(message):  # a plain function runs in a thread, where it may block
    with closing(sqlite3.connect("bank.db")) as db, db:  # one transaction
        new = db.execute("INSERT OR IGNORE INTO seen (id) VALUES (?)", (str(message.id),)).rowcount
        if new:
            db.execute("UPDATE account SET balance = balance + ?", (int(message.payload),))
    # Committed; now the message is acked. Whoever dies in between gets it again, and books nothing.


async def main():
    with closing(sqlite3.connect("bank.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, balance INTEGER)")
        db.execute("INSERT OR IGNORE INTO account VALUES ('ours', 0)")
    async with connect(NODES) as client:
        await client.create_topic("deposits")
        await client.work("deposits", "bookkeepers", book, retry=sqlite3.OperationalError)


asyncio.run(main())
