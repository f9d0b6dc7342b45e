"""Claims: matching, steps, delivery, releases, and how Pods of claims end."""
