"""Kubernetes as the rest of Ostler sees it: runner Pods, pools, stamps and identities, with errors by meaning."""
