"""Restore: the epoch of Postgres, and the rebuilding of claims from the cluster."""
