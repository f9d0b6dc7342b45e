"""Intake: webhooks become rows, and started jobs are bound to their runners."""
