"""A Docker engine in namespaces of its own, and the check of the compose file on it."""
