"""Tables without queries of their own."""
