"""Pools: the mirror of the pool objects, the rows of their Pods, the plans of the reconciler, and the autoscaler."""
