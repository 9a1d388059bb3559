"""Try calls again, later each time, and give up what cannot succeed. Try: quorumq publish calls 555-0100 nobody"""

import sys

from quorumq.client.blocking import connect

NODES = sys.argv[1:] or ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"]


def call(message):
    number = message.payload.decode()
    if not number.startswith("555-"):
        raise ValueError(f"{number} is no number")  # not in `retry`: a dead letter at once
    if message.attempt == 1:
        raise TimeoutError("no answer")  # again after the topic's backoff
    if message.attempt == 2:
        message.reject(delay=0.3)  # again when the other side says: a Retry-After
        return
    print(f"reached {number} at attempt {message.attempt}")


def main():
    with connect(NODES) as client:
        client.create_topic("calls", max_deliveries=5, backoff=[0.2, 10.0, 60.0])
        client.work("calls", "callers", call, concurrency=8, retry=(TimeoutError, ConnectionError))


main()
