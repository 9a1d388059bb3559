"""Values and tables that know nothing of a cluster: spans, limits, errors, clocks."""
