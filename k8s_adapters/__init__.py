"""Adapter to Kubernetes: runner Pods, pools, stamps and identities, with errors by meaning."""
