"""The edge: ports, TLS, and limits on clients that have not been authenticated yet."""
