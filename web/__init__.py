"""Web process: webhook intake, runner polls, REST API, health and metrics."""
