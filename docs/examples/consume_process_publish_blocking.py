"""Make two thumbnails of each upload, each exactly once. Try: quorumq publish uploads cat.png"""

import sys

from quorumq.client.blocking import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def main():
    with connect(NODES) as client:
        client.create_topic("uploads")
        client.create_topic("thumbnails", partitions=4)

        def shrink(message):
            small, large = b"small " + message.payload, b"large " + message.payload
            client.publish("thumbnails", small, derived_from=message)
            client.publish("thumbnails", large, derived_from=message, index=1)

        client.work("uploads", "shrinkers", shrink, concurrency=8)


main()
