"""Read access for operators: lists and single items, with their explanations. Nothing here changes what it shows."""
