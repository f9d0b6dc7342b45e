"""Adapter to Kubernetes: runner Pods, pools, stamps and identities. Errors are named by meaning, not by HTTP status."""
