"""`ostler watch`: watches of the runner Pods and the pools that wake others when something happens to one.

Nothing is decided here and nothing is kept: what is told is a hint (law L6), which a task proves by a GET or a row.
Without this process the same is found by the sweeps, later.
"""
