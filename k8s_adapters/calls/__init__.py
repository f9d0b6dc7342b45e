"""Calls to the API server: the client, its retry layer, refusals, lists of metadata, and processes in containers."""
