"""`RunnerPool` objects: their definition, their reader, their changes, and the finalizer of pools that drain."""
