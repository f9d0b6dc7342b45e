"""Celery tasks: one thin module per step. The rows decide, and a message is only a hint (L6)."""
