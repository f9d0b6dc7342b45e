"""The Celery tasks: one module per step, thin and boring. Rows decide, messages are hints (L6)."""
