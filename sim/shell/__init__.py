"""The production shell under the heap's faults: node, links, commits and the client library in virtual time.

Here is all that the heap leaves out: frames and the wire, the loop of a node, its queues and timers, the journal of
quorumq/storage, the client's retries. Sockets, threads and disks are memory.
"""
