"""Shipped contract kit: test your own selector, method, world or task by listing it."""
