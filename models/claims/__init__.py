"""Claims: matching, steps, delivery, releases, and the ends of the Pods that claims reserve."""
