"""Tables that several rooms write, each with the statements that change its rows."""
