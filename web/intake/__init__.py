"""Intake of GitHub's webhooks."""
