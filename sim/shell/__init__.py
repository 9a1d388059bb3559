"""The production shell under the simulator's faults: node, links, commits and the client library in virtual time.

Here is what the simulator leaves out: frames and the wire, the loop of a node, its queues and timers, the journal of
quorumq/storage, the client's retries. Sockets, threads and disks are memory.
"""
