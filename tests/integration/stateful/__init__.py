"""The claim path in any order, driven by hypothesis against the real tables."""
