"""Publish jobs that are due later, and do each when it is due."""

import sys
from datetime import timedelta

from quorumq.client.blocking import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def remind(message):
    print("time for", message.payload.decode())


def main():
    with connect(NODES) as client:
        client.create_topic("reminders")
        client.publish("reminders", b"the oven", delay=timedelta(seconds=1))
        client.publish("reminders", b"the tea", delay=0.5)
        client.work("reminders", "bells", remind)


main()
