"""The edge: ports, TLS, and bounds on clients that have proven nothing."""
