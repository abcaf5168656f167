"""The simulator: federation, virtual clock and the loop."""
