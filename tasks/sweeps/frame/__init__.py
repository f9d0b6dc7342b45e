"""The frame of the sweeps: the decorator of a sweep, its tick and pace, obstacles of repairs, and shared lists."""
