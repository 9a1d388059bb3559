"""Trust in a data directory: replay of the journal, resync and declarations of survivors."""
