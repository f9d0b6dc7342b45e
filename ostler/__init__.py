"""Ostler: a control plane that gives each queued CI job exactly one warm, single-use runner Pod."""
