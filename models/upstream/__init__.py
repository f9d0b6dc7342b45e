"""Upstreams: persisted backoffs and gates of GitHub and Kubernetes."""
