"""Intake: the account that owns the App."""
