"""Sweeps: verdicts on leftovers, and the limits of each repair."""
