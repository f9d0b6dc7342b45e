"""Claims: dispatch, stamp, mint, release and retire, and the checks before each of them."""
