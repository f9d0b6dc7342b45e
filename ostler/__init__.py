"""Ostler: warm, single-use CI runner Pods, and exactly one of them for each queued job."""
