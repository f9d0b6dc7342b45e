"""Access to Postgres: engine, prepared statements, NOTIFY channel, epoch and migrations."""
