"""What runs were worth, and which of two is better: statistics and comparison."""
