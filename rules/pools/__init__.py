"""Pools: plan, status, scaling and template of the fleet."""
