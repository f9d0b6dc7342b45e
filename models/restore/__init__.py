"""Restore: claims for Pods whose own rows are lost."""
