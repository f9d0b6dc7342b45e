"""Pools: the reconciliation of each pool, its autoscaler, and the changes that the watch reports."""
