"""Tables in Postgres, with the queries and transitions of each. Postgres is the only source of truth.

A function takes an open connection inside `models.db.engine.transaction`, and most take the current time as `now`. No
function calls anything outside Postgres (law L15).
"""
