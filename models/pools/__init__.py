"""Pools: their mirror, the rows and offers of their Pods, plans and scaling."""
