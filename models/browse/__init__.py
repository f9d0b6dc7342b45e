"""Queries for operators: lists, and single items with facts that explain their state."""
