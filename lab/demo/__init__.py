"""The demo: the whole system on this machine, real jobs through it, and a verdict that rests on the lab alone."""
