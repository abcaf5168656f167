"""The server side of a Flower deployment."""
