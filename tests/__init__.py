"""Tests: unit (mirrors the tree), integration, contract, faults, e2e."""
