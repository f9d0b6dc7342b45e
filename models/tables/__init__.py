"""Tables that several packages write, each with the statements that change its rows."""
