"""Sweeps: periodic repairs, one module each.

The sweeps find and repair rows and objects that a lost message or a killed process left unfinished.
"""
