"""Check for programs whose host has changed the modules that trio works with: refused by name, before anything breaks.

gevent and eventlet replace sockets and threads by their own while a program starts. The client runs trio, here or in a
thread of its own, and trio needs those of the system. Under eventlet trio
cannot even be imported, so `quorumq.client` looks here before it does that.
"""

from __future__ import annotations

import sys

from quorumq.core.values.errors import UsageError


def check_host() -> None:
    """Refuse a process in which sockets or threads are not the system's.

    Raises:
        UsageError: the modules are replaced; names the replacements, and the remedy.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    patched = {
        "gevent": gevent and any(map(gevent.is_module_patched, ("socket", "threading", "select"))),
        "eventlet": eventlet and any(map(eventlet.is_monkey_patched, ("socket", "thread", "select"))),
    }
    for name, there in patched.items():
        if there:
            raise UsageError(
                f"{name} has replaced sockets and threads of this process (monkey patching), and quorumq needs "
                "those of the system: run this program without it (gunicorn: --worker-class gthread, or uvicorn's), or "
                "publish from a process of its own"
            )
