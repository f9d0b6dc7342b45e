"""Intake: the events of GitHub's webhooks, and the binding of a started job to a claim."""
