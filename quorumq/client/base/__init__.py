"""Messages, options and the context that all calls of a client share."""
