"""Attacks on the listeners of `ostler web`, over raw sockets. Each one succeeded before it had a test."""
