"""Sweeps: periodic repairs, one module each.

They find and repair what a lost message or a killed process left behind.
"""
