"""The client side of a Flower deployment."""
