"""Claims: matching, steps, delivery, release, and records of how claimed Pods ended."""
