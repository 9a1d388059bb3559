"""A cluster of real processes under the simulator's faults: its own workload or a user's, and the same checkers.

Nothing here knows how a node works inside. Links between nodes, and from clients to nodes, go through a proxy that cuts
and delays them; processes get signals; a node's disk and clock are changed inside of its process
(faulty_node.py), as no test may change a machine's.
"""
