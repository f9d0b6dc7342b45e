"""Tables, each with the queries and transitions that own it. Postgres holds the truth.

Functions take an open connection inside `models.db.engine.transaction` and `now`; none of them calls
anything outside Postgres (law L15).
"""
