"""The design note's other approaches and the log consumer, under the same workload, faults and checkers as quorumq."""
