"""Publish exported messages to a cluster: cat a.jsonl b.jsonl | python republish.py 10.0.0.1:7401"""

import base64
import json
import sys
from contextlib import ExitStack

from quorumq.client.blocking import connect


def bytes_of(fields, name):
    data = fields.get(f"{name}_base64")
    return base64.b64decode(data) if data is not None else fields[name] and fields[name].encode()


with ExitStack() as stack:
    client = stack.enter_context(connect(sys.argv[1:]))
    producers, seen = {}, set()
    for line in sys.stdin:
        message = json.loads(line)
        if message["id"] in seen:
            continue  # another replica's copy
        seen.add(message["id"])
        topic = message["topic"]
        if topic not in producers:
            producers[topic] = stack.enter_context(client.producer(topic))
        headers = {
            name: base64.b64decode(value["base64"]) if isinstance(value, dict) else value
            for name, value in message["headers"].items()
        }
        payload, key = bytes_of(message, "payload") or b"", bytes_of(message, "key")
        producers[topic].send(payload, key=key, headers=headers)
    for producer in producers.values():
        producer.flush()  # raises if one was not stored
    print(f"published {len(seen)} messages")
