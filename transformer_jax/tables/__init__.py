"""The experiment bench: rows and seeds of a table as ordinary runs, and the table out of them."""
