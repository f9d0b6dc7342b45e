"""The edge: ports, TLS, and limits on clients that are not authenticated yet."""
