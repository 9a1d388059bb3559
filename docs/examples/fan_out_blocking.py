"""Have two groups read every order: one bills, one packs. Try: quorumq publish orders pretzels"""

import sys
import time

from quorumq.client.blocking import Task, connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def bill(message):
    print("billed", message.payload.decode())


def pack(message):
    time.sleep(0.1)  # slow, and no concern of the other group
    print("packed", message.payload.decode())


def main():
    with connect(NODES) as client:
        client.create_topic("orders")
        for group in ("billing", "packing"):  # before the first order: what a group is there for, it gets
            client.create_group("orders", group)
        tasks = [Task("orders", "billing", bill), Task("orders", "packing", pack, concurrency=4)]
        client.work_all(tasks)  # in one process here; as well in two, or in ten of each


main()
