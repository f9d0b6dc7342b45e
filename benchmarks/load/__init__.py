"""Programs that load Ostler or stand for its surroundings, each a process of its own."""
