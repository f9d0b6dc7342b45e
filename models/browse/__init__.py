"""Queries for operators: lists and single items, with their explanations. Only `api_tokens` changes rows."""
