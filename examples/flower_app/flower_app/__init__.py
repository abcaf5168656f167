"""A PyTorch app in the shape of the Flower quickstart."""
