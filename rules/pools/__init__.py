"""Pools: plan, status, scaling and template of the Pods of each pool."""
