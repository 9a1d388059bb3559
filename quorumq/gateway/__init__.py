"""Access to a cluster for programs without its client: the SQS protocol, JSON over HTTP, and the console in a browser.

`quorumq gateway` is a process beside any node, and keeps nothing that another gateway would miss: docs/gateway.md. It
needs the extra ``quorumq[gateway]``; nodes never import it.
"""
