"""Restore: the epoch of Postgres, and verdicts on the Pods whose claims a restore of Postgres lost."""
