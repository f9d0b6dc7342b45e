"""Upstreams: the stored backoffs of GitHub, and the gates of GitHub and Kubernetes."""
