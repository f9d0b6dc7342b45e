"""Tables in Postgres, with the queries and transitions of each table. Postgres is the only source of truth.

A function that reads or writes rows takes the connection that `models.db.engine.transaction` has opened. Most of these
functions take the current time as `now`. No function here calls a service other than Postgres (law L15).
"""
