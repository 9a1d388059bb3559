"""A web service that takes jobs and works on them, in one process. Try: curl -d cat.png http://127.0.0.1:8000"""

import os
import signal
import sys
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from quorumq.client.blocking import connect

NODES = os.environ.get("QUORUMQ_NODES", "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403").split(",")
PORT = int(os.environ.get("PORT", "8000"))


def resize(message):
    time.sleep(0.1)  # your work
    print("resized", message.payload.decode())


@contextmanager
def jobs():
    stopping = Event()

    def work():
        worked = client.work("photos", "resizers", resize, concurrency=8, stop=stopping)
        print(f"stopped: {worked.done} done, {worked.dead_lettered} given up")

    with connect(NODES) as client:
        pool = Thread(target=work)
        pool.start()
        try:
            yield client
        finally:
            stopping.set()  # signals come to the main thread, which leaves this
            pool.join()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        job = self.server.client.publish("photos", body)  # it is stored: the answer may say so
        self.send_response(202)
        self.end_headers()
        self.wfile.write(f"{job}\n".encode())

    def log_message(self, *words): ...


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server, jobs() as server.client:
        server.serve_forever()


if __name__ == "__main__":
    main()
