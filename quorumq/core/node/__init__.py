"""One node of the protocol: the step, its routes, its timers and its status."""
