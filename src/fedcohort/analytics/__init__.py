"""How skewed are the clients, without seeing their data."""
