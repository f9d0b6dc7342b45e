"""Restore: new claims for Pods whose claims are missing from a restored database."""
