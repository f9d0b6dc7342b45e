"""Chaos runs: one without a bug, and one for each of six bugs."""
