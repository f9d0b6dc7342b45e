"""Claims: dispatch, stamp, mint, release, retire, and the questions that come before them."""
