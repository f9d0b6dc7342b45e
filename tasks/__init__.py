"""Celery tasks: one thin module per step. A task decides by the rows. Its message is only a hint (L6)."""
