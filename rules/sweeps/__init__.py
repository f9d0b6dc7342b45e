"""Sweeps: judgements about what is left over, and the limits of each repair."""
