"""Publish what a transaction has written, and nothing that was rolled back."""

import asyncio
import sqlite3
import sys

from quorumq.client.aio import NewMessage, connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def buy(db, item):
    with db:  # one transaction: the sale and its message are both there, or neither
        db.execute("INSERT INTO sales (item) VALUES (?)", (item,))
        db.execute("INSERT INTO outbox (payload) VALUES (?)", (f"sold: {item}",))


async def relay(db, client):
    async with client.producer("sales") as producer:
        while rows := db.execute("SELECT id, payload FROM outbox ORDER BY id LIMIT 500").fetchall():
            await producer.publish_many(
                NewMessage(payload.encode(), headers={"outbox": number}) for number, payload in rows
            )
            with db:  # only what is stored is taken out
                db.executemany("DELETE FROM outbox WHERE id = ?", [(number,) for number, _ in rows])


async def main():
    db = sqlite3.connect("shop.db")
    db.execute("CREATE TABLE IF NOT EXISTS sales (id INTEGER PRIMARY KEY, item TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, payload TEXT)")
    async with connect(NODES) as client:
        await client.create_topic("sales")
        for item in ("a lamp", "a chair"):
            buy(db, item)
        await relay(db, client)  # in a service: every second, for ever


asyncio.run(main())
