"""Restore: the epoch of Postgres, and the verdicts that rebuild lost claims."""
