"""Sweeps: periodic repairs, one module each. What they share is in `tasks.sweeps.frame`.

The sweeps find and repair rows and objects that a lost message, a killed process or a fault of an upstream left
unfinished.
"""
