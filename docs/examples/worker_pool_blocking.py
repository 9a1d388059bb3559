"""Work on the messages of a topic, eight at a time, until Ctrl-C or SIGTERM. Try: quorumq publish images cat.png"""

import sys
import time

from quorumq.client.blocking import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def resize(message):
    time.sleep(0.1)  # your work
    print("resized", message.payload.decode())


def main():
    with connect(NODES) as client:
        client.create_topic("images", max_deliveries=5, backoff=[1.0, 10.0, 60.0])
        worked = client.work(
            "images", "resizers", resize, concurrency=8, retry=(TimeoutError, ConnectionError), timeout=60.0
        )
        print(f"stopped: {worked.done} done, {worked.dead_lettered} given up")


main()
