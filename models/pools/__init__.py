"""Pools: their mirror, the rows of their Pods, their plans and their scaling."""
