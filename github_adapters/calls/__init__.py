"""One call to GitHub: connection, token, pace, retries, and the meaning of the answer."""
