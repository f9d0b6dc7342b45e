"""Tables that several packages write, and all statements that change the rows of these tables."""
