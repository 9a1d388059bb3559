"""The explorer: every interleaving, within bounds, of the real node core (docs/verification.md, "Explorer")."""
