"""Adapter to GitHub: all its REST calls and webhooks. Code above this package does not handle HTTP."""
