"""Upstreams: stored backoffs and gates of GitHub and Kubernetes."""
