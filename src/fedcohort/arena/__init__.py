"""The arena: frozen problems, everybody's results on them, and where a selector of your own stands."""
