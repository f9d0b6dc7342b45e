"""Sweeps: periodic repairs, one module each.

The sweeps find and repair rows and objects that a lost message, a killed process or a fault of an upstream left
unfinished.
"""
