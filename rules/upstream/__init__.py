"""Calls to GitHub and Kubernetes: retries, gates, watches and leadership."""
