"""Mutation tests: small mistakes, seeded one at a time, that find code without an effective test."""
