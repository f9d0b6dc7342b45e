"""Mutation tests: small mistakes seeded one at a time, to find the code that no test judges."""
