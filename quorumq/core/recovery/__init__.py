"""Trust in a data directory: replay of the journal, resync and declarations of survivors.

The other half of a restart is quarantine, because of forgotten holds: core/partition/hold_recovery.py.
"""
