"""Adapter to GitHub: all calls of the REST API, and the parsing of webhooks.

Code above this package does not handle HTTP.
"""
