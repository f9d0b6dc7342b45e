"""Programs that load Ostler or stand for what is around it, each a process of its own."""
