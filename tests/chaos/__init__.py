"""Chaos runs: a clean one, and one for each of six bugs."""
