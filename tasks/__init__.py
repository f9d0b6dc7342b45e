"""Celery tasks: one small module per step. A task decides by the rows, and its message is only a hint (law L6)."""
