"""Intake: webhooks to rows, and the binding of jobs to runners."""
