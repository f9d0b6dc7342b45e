"""The sweeps: level-triggered repairs, one module each. Messages may be lost; these find what they left."""
