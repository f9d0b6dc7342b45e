"""Adapter to Kubernetes: runner Pods, pools, stamps and identities.

The classes of errors are named by their meaning, not by HTTP status.
"""
