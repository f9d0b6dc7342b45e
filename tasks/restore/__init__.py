"""Restore: comparison of the epochs, and `ostler restore`."""
