"""A Flower project and a loopback deployment to try things with."""
