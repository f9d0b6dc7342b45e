"""Reading for people: lists and single items, with what explains them. Nothing here changes a row."""
